"""Who serves which shard: a leader's plan, leases of a coordinator, and the state machine of each lease.

This package knows shards and nodes, never jobs. An elected leader writes one sticky plan; every node reconciles its
leases to it. A lease carries (generation, token), which only grows, and is worth nothing until PostgreSQL has accepted
it as the shard's fence: two nodes may believe for a while that they hold a shard, but only one can write. While the
coordinator is away, nodes go on serving what they hold.
"""
