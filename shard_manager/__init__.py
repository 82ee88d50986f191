"""Who serves which shard: a leader's plan, leases of a coordinator, and the state machine of each lease.

This package knows shards and nodes, never jobs.

Model. Every node keeps a *session* with the coordinator. The node with the eldest session leads and writes one *plan*,
which gives each shard to a node and changes as little as possible (`assignment`, `pacing`). Every node brings its
shards in line with the plan: it takes the shard's *lease*, makes it the shard's fence in PostgreSQL, and only then lets
its shard host serve it (`lease` is that life as a state machine, `manager` the loops that drive it). The coordinator is
anything that fits `coordinator.Coordinator`: `memory` for tests, `postgres` for small installations, `zookeeper`.

Guaranteed. Leases of a shard are ordered by (generation, token), and the fence takes newer ones only; so of all nodes
that believe to own a shard, at most one can write to it. A shard whose owner is alive moves only if the plan says so.
A node that drains releases a shard after it has stopped it. Losing the coordinator costs no shard; losing the session
stops all at once, and they are leased and fenced anew.

Not guaranteed. Two nodes may *believe* for a while that they own the same shard: after a pause of the process longer
than the session, or behind a broken network. A lease without its fence protects nothing, and a view of the cluster may
be outdated when it is read. How soon a dead node's shards are served again depends on the length of the session.
"""
