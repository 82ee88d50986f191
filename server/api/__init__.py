"""The gRPC edge towards clients: services, conversion between messages and domain values, errors, limits, access.

Messages stop here: below this package only domain values travel. Bad input is refused with INVALID_ARGUMENT that
names the field, the value and the remedy, after bounded work and with nothing stored.
"""
