"""What a cluster of nodes does when something happens to it: real processes, a real ZooKeeper, a real PostgreSQL.

A trigger writes down each claim and each fence-in by the database's clock; the nodes' logs tell when a shard was
acquired and lost. All of it is one machine's clock.
"""
