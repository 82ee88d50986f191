"""Errors of shard ownership. Each carries its data as attributes; the message is made from them.

ShardManagerError
├── InvalidSetting          a value that came from outside cannot be accepted
├── DataDirInUse            another live process of this host uses the node's data directory
├── ShardCountMismatch      the cluster was set up with another number of shards
├── PlanCorrupt             the stored plan cannot be read
├── OrderRefused            an order of an operator cannot be obeyed, and nothing was changed
│   ├── UnknownNode              no such node
│   ├── UnknownShard             no such shard
│   ├── ProcessGone              the process that was meant has been replaced by a later one
│   ├── NodeUnfit                the node cannot be given shards
│   ├── LastNode                 no other node can serve
│   ├── ClusterPaused            rebalancing is paused
│   ├── PlanChanged              the plan is no longer the one that the order was meant for
│   └── TooManyOrders            too many nodes are drained or evicted
└── CoordinatorError
    ├── CoordinatorUnavailable   no answer in time: the outcome of the call is unknown; try again
    ├── CoordinatorFailed        an answer that a retry alone does not mend (schema missing, permission denied)
    ├── ForeignCluster           the coordinator's place belongs to another cluster
    ├── SessionLost              the session is over, and with it every lease
    ├── NodeNameTaken            a live session of another process has this node's name
    ├── NotLeader                only the leader may write the plan
    └── PlanConflict             somebody else wrote a plan meanwhile
"""

from collections.abc import Collection, Sequence


class ShardManagerError(Exception):
    """Base of everything that this package raises."""


class InvalidSetting(ShardManagerError, ValueError):
    """A value that came from outside is refused: `field` names it, `value` is what was given, `remedy` what helps."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {remedy} (got {value!r})")
        self.field = field
        self.value = value
        self.remedy = remedy


class DataDirInUse(ShardManagerError):
    """Another live process of this host holds the lock on `path`; two nodes cannot share a data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is locked by another running process; give each node a data directory of its own")
        self.path = path


class ShardCountMismatch(ShardManagerError):
    """This node is set to `configured` shards, the stored plan has `planned`; the number is permanent."""

    def __init__(self, configured: int, planned: int) -> None:
        super().__init__(
            f"this node is set to {configured} shards but the cluster has {planned}; "
            f"the number of shards is permanent, so set it to {planned}"
        )
        self.configured = configured
        self.planned = planned


class PlanCorrupt(ShardManagerError):
    """The stored plan cannot be read: `reason` says why. Serving goes on by what is held; planning does not."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the stored plan cannot be read ({reason}); if it stays so, delete it: the leader writes a new one"
        )
        self.reason = reason


class OrderRefused(ShardManagerError):
    """An order cannot be obeyed; nothing was changed."""


class UnknownNode(OrderRefused):
    """There is no node `node`; `known` are those that are here."""

    def __init__(self, node: str, known: Sequence[str]) -> None:
        super().__init__(f"there is no node {node!r}; there are: {', '.join(known)}")
        self.node = node
        self.known = tuple(known)


class UnknownShard(OrderRefused):
    """There is no shard `shard`; the cluster has `shards`."""

    def __init__(self, shard: int, shards: int) -> None:
        super().__init__(f"there is no shard {shard}; shards are numbered from 0 to {shards - 1}")
        self.shard = shard
        self.shards = shards


class ProcessGone(OrderRefused):
    """Another process than `incarnation` has the name `node` now."""

    def __init__(self, node: str, incarnation: int) -> None:
        super().__init__(f"process {incarnation} of node {node!r} is gone, a later one runs; nothing has to be done")
        self.node = node
        self.incarnation = incarnation


class NodeUnfit(OrderRefused):
    """`node` is draining, drained, evicted or unhealthy; `fit` are the nodes that can be given shards."""

    def __init__(self, node: str, fit: Collection[str]) -> None:
        super().__init__(
            f"node {node!r} cannot be given shards: it is draining, drained, evicted or unhealthy; "
            f"undrain it, or choose one of: {', '.join(fit) or 'none is fit'}"
        )
        self.node = node
        self.fit = tuple(fit)


class LastNode(OrderRefused):
    """Without `node`, no node could serve."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"node {node!r} is the last that can serve: no job would start until another is there; "
            "start or undrain another first, or use force"
        )
        self.node = node


class ClusterPaused(OrderRefused):
    """Rebalancing is paused."""

    def __init__(self) -> None:
        super().__init__("rebalancing is paused; resume it first")


class PlanChanged(OrderRefused):
    """The order was meant for plan version `expected`, but `found` is in force."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the plan is at version {found}, not {expected}; look at it again and repeat")
        self.expected = expected
        self.found = found


class TooManyOrders(OrderRefused):
    """`limit` nodes are drained or evicted."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} nodes are drained or evicted, more cannot be; undrain those that are gone")
        self.limit = limit


class CoordinatorError(ShardManagerError):
    """Base of what a `Coordinator` raises."""


class CoordinatorUnavailable(CoordinatorError):
    """`operation` got no answer in time, or the connection broke: it may or may not have happened. Try again."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"coordinator unavailable during {operation}: {reason}")
        self.operation = operation
        self.reason = reason


class CoordinatorFailed(CoordinatorError):
    """`operation` was answered with an error that a retry alone does not mend; `reason` is the coordinator's text."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"coordinator refused {operation}: {reason}")
        self.operation = operation
        self.reason = reason


class ForeignCluster(CoordinatorError):
    """What lies at `place` in the coordinator belongs to the cluster `theirs`, not to `ours`."""

    def __init__(self, place: str, *, ours: str, theirs: str) -> None:
        super().__init__(
            f"{place} belongs to cluster {theirs}, this node to {ours}; give each cluster a path of its own, or "
            "delete that one if its cluster is gone"
        )
        self.place = place
        self.ours = ours
        self.theirs = theirs


class SessionLost(CoordinatorError):
    """The session of `node` is over (expired, replaced, or never opened): none of its leases holds any more."""

    def __init__(self, node: str) -> None:
        super().__init__(f"the coordinator session of node {node!r} is over")
        self.node = node


class NodeNameTaken(CoordinatorError):
    """A live session of another process (`incarnation`, at `address`) has the name `node`.

    `expires_in_s` is how long that session lives on unless it is renewed, in seconds.
    """

    def __init__(self, node: str, *, incarnation: int, address: str, expires_in_s: float) -> None:
        super().__init__(
            f"node name {node!r} is taken by incarnation {incarnation} at {address or 'an unknown address'}, whose "
            f"session ends in {expires_in_s:.1f} s unless renewed; wait for it, or give this node a name of its own"
        )
        self.node = node
        self.incarnation = incarnation
        self.address = address
        self.expires_in_s = expires_in_s


class NotLeader(CoordinatorError):
    """`node` may not write the plan: `leader` leads (None: nobody does at this moment)."""

    def __init__(self, node: str, leader: str | None) -> None:
        super().__init__(f"node {node!r} does not lead; the leader is {leader!r}")
        self.node = node
        self.leader = leader


class PlanConflict(CoordinatorError):
    """The plan to be replaced is no longer version `expected`; `found` is the stored version (0: none)."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the plan is at version {found}, not {expected}; read it again")
        self.expected = expected
        self.found = found
