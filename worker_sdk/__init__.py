"""Write handlers, run them in a worker, and submit jobs: the client side of Shardwheel.

A handler runs at least once for each job. Side effects are not exactly-once by themselves: a handler gets an
idempotency key that is stable over all attempts of its job. The package needs the generated messages, grpcio and
protobuf, and nothing of the server.
"""
