"""What the shard manager reports to its observer: for metrics, and for tests that wait for something to happen."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Cause(StrEnum):
    """Why a node came to hold a shard, or ceased to."""

    PLAN = "plan"
    DRAIN = "drain"
    FENCED = "fenced"
    SESSION_LOST = "session lost"
    LEASE_GONE = "lease gone"
    START_FAILED = "start failed"
    FENCE_REFUSED = "fence refused"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """The node joined; `lost_before` says how many of its sessions have been lost so far."""

    node: str
    lost_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """The session was lost: every shard was stopped at once, and the node joins again."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAcquired:
    """The shard is fenced in at `epoch` and its host has started."""

    shard: int
    epoch: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLost:
    """The shard, served at `epoch` until now, is being stopped."""

    shard: int
    epoch: int
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReleased:
    """The shard's lease is given back: others may take it."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRefusal:
    """PostgreSQL refused a lease as too old. Now and then: harmless. For ever: the coordinator was restored from an
    old state and needs a new generation."""

    shard: int
    generation: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged:
    """This node sees another leader than before; None: none."""

    leader: str | None
    previous: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWritten:
    """This node, leading, wrote plan `version`, which moves `moves` shards."""

    version: int
    moves: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderObeyed:
    """This node, leading, carried out an order of an operator (`order` in words); `moves` shards move for it."""

    order: str
    version: int
    moves: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvicted:
    """This node, leading, ended the session of `node` because it is evicted."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionChanged:
    """This node is given no shards on account of an order, or is so no more. `order` is "drained", "evicted" or ""."""

    node: str
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSeen:
    """This node now reconciles to plan `version`, which gives it `mine` shards."""

    version: int
    mine: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleBegan:
    """A loop (`doing`) fails and retries; shards that are held are served on."""

    doing: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleOver:
    """The loop (`doing`) works again after `failures` failures."""

    doing: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The node has stopped and released everything; `left` is False if it could not end its session in time."""

    node: str
    left: bool


ManagerEvent: TypeAlias = (
    SessionOpened | SessionEnded | ShardAcquired | ShardLost | ShardReleased | FenceRefusal | LeaderChanged
    | PlanWritten | PlanSeen | OrderObeyed | NodeEvicted | ExclusionChanged | TroubleBegan | TroubleOver | Drained
)  # fmt: skip
