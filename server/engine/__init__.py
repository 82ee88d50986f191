"""The asynchronous loops that bring due jobs to workers and their results back.

The engine knows the domain and its own ports, never gRPC, PostgreSQL or ZooKeeper: `server.app` hands it the
implementations. Every loop survives an exception, logs it once with its context and backs off; every loop can be
driven by single steps in tests.
"""
