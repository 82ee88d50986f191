"""The rules of jobs and schedules as values and pure functions.

Nothing here does input or output, reads a clock or draws a random number: the present instant and randomness are
arguments, which makes every rule testable by value. All instants are timezone-aware UTC datetimes, all spans are
`timedelta`. The package imports nothing else of this project.
"""
