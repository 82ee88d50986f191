"""How nodes of one cluster talk to each other: directly, by gRPC, to save each other's time.

Nothing that is said here is needed for safety or for liveness. Every message may be lost, late or repeated: the sweeps
of an owner and the slow polls of a waiter find what nobody told of.
"""
