"""One Shardwheel node: it takes jobs over gRPC, keeps them in PostgreSQL and hands them to workers when they are due.

The layers point downwards only. `domain` is pure; `engine` runs the loops of the owned shards against ports; `store`
holds all SQL; `api` and `dispatch` are the edges towards clients and workers; `observe` is logging, metrics and
health; `app` alone joins them with a coordinator of `shard_manager`. PostgreSQL is the only truth: a node holds
caches, and killing it at any instruction loses nothing.
"""
