"""The coordinator on ZooKeeper: what clusters of many nodes use.

Model. A session is what its *candidate* stands for: an ephemeral sequential znode that is made when a node joins, in
one step with its member znode. Every write checks in the same transaction that the candidate is still there, so
nothing that was sent in one session can take effect in another, however late it arrives. The lowest candidate leads,
and goes on leading until it vanishes. A lease is an ephemeral znode, its token the transaction (czxid) that made it.

    /<chroot>/meta                        cluster id and generation
    /<chroot>/members/<node>              ephemeral: incarnation, state, weight, address
    /<chroot>/candidates/<node>-<number>  ephemeral, sequential: the session; the lowest leads
    /<chroot>/plan                        the plan, written by the leader over the version that it read
    /<chroot>/leases/<shard>              ephemeral: generation and node

Guaranteed. While ZooKeeper does not answer (SUSPENDED), sessions and leases stay what they are; only its word that the
session has expired (LOST) ends them, or that this process has not renewed for a session's length. Watches do no more
than wake the caller: whatever is acted upon was read. No call waits longer than its deadline.

Not guaranteed. Reads come from one server and may lag behind others, unless they are fresh. Tokens grow as long as the
ensemble keeps its data; if it was wiped, the first to join draws a higher generation, but an ensemble that was set back
to a backup looks like the old one: delete `meta` then.
"""

from shard_manager.zookeeper.coordinator import ZookeeperCoordinator
from shard_manager.zookeeper.messages import LinkState
from shard_manager.zookeeper.meta import DrawGeneration
from shard_manager.zookeeper.settings import ZookeeperSettings

__all__ = ["DrawGeneration", "LinkState", "ZookeeperCoordinator", "ZookeeperSettings"]
