"""What a coordinator is: sessions, members, one plan, leases. Implemented in memory, on PostgreSQL, on ZooKeeper.

A coordinator answers who lives and grants leases; it never makes a shard safe. Safety is the fence in PostgreSQL, which
accepts a lease only if its (generation, token) is newer than that of every lease before it.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from shard_manager.errors import InvalidSetting
from shard_manager.orders import Orders

MAX_SHARDS: Final = 1024
MAX_WEIGHT: Final = 1000
_MAX_BIGINT: Final = 2**63 - 1
_MAX_ADDRESS_CHARS: Final = 255
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class MemberState(StrEnum):
    """What a node says of itself. Only `up` nodes are given shards, `unhealthy` ones if there is no better."""

    UP = "up"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node of the cluster.

    `incarnation` is new each time the process starts (1 to 2**63-1); the name may be reused. `weight` (1 to 1000) is
    the node's share of the shards relative to the others. `address` is where other nodes and workers reach it.
    Raises `InvalidSetting`.
    """

    node: str
    incarnation: int
    state: MemberState = MemberState.UP
    weight: int = 1
    address: str = ""

    def __post_init__(self) -> None:
        if not _NODE_NAME.fullmatch(self.node):
            raise InvalidSetting(
                "node", self.node, "1 to 128 letters, digits and . _ : - are allowed, the first a letter or digit"
            )
        if not 1 <= self.incarnation <= _MAX_BIGINT:
            raise InvalidSetting("incarnation", self.incarnation, "must be 1 to 2**63-1")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise InvalidSetting("weight", self.weight, f"must be 1 to {MAX_WEIGHT}")
        if len(self.address) > _MAX_ADDRESS_CHARS or not (self.address.isprintable()):
            raise InvalidSetting("address", self.address, f"must be at most {_MAX_ADDRESS_CHARS} printable characters")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Lease:
    """The grant of one shard to one session.

    `generation` grows when the coordinator is replaced or wiped, `token` with every lease of a generation, so leases of
    a shard are ordered by (generation, token) and a later one is greater.
    """

    shard: int
    generation: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who should serve which shard. `version` counts writes from 1; a shard without an owner is absent from `owners`.

    `shards` is the number of shards of the cluster. `orders` are what people have decided. `leader` wrote it, for
    `reason`.
    """

    version: int
    shards: int
    owners: Mapping[int, str]
    orders: Orders = field(default_factory=Orders)
    leader: str = ""
    reason: str = ""

    def shards_of(self, node: str) -> frozenset[int]:
        """The shards that this plan gives to `node`."""
        return frozenset(shard for shard, owner in self.owners.items() if owner == node)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A live session: `number` grows with each session of a node, `opened_at` is UTC by the coordinator's clock."""

    number: int
    opened_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the coordinator knew at one read.

    `members` are the nodes with a live session, by name; `sessions` are those sessions, and may be newer or older by a
    moment than `members`. `leader` may be outdated by the time it is read; only `write_plan`
    decides. `plan` is None before the first one. `held` are this session's leases, complete with respect to every
    `acquire` and `release` that returned before the read began.
    """

    members: Mapping[str, Member]
    leader: str | None
    plan: Plan | None
    held: Mapping[int, Lease]
    sessions: Mapping[str, SessionInfo] = field(default_factory=dict)


class Coordinator(Protocol):
    """One node's connection to the coordinator. For use from one event loop.

    Every call has a deadline of its own and raises `CoordinatorUnavailable` when it passes: the call may or may not
    have happened, and every call may be repeated. All but `join`, `close`, `wake` and `wait_change` raise `SessionLost`
    when the session is over; then nothing is held any more and only `join` helps.
    """

    @property
    def tells_at_once(self) -> bool:
        """Whether `wait_change` returns as soon as a plan is written; else nodes learn of it when they look."""

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        """Open a new session, which ends `ttl` after the last renewal, and register `member`.

        A session of the same incarnation is replaced, for it is this process's own; so is one whose incarnation is in
        `replaces`, which the caller must know to be dead. Raises `NodeNameTaken` if another live session has the name.
        """

    async def renew(self, member: Member) -> None:
        """Keep the session alive and publish what `member` says now. Node and incarnation must be those of `join`."""

    async def leave(self) -> None:
        """End the session gracefully: its leases are free at once. Without a session: nothing."""

    async def close(self) -> None:
        """Let go of connections and tasks. An open session is not ended; it expires by itself. Never raises."""

    async def view(self, *, fresh: bool = False) -> View:
        """Read the cluster. With `fresh`, nothing is answered from what watches or earlier reads have left here."""

    async def write_plan(self, plan: Plan) -> None:
        """Replace plan version `plan.version` - 1 (0: there is none yet) by `plan`.

        Raises `NotLeader` or `PlanConflict`.
        """

    async def acquire(self, shards: Collection[int]) -> Collection[Lease]:
        """Lease those of `shards` that are free, without waiting for the rest.

        Returns all leases of these shards that this session holds now, older ones too, so a repeated call recovers
        leases whose first answer was lost.
        """

    async def release(self, leases: Collection[Lease]) -> None:
        """Give up exactly these leases; one that is no longer held is passed over."""

    async def evict(self, node: str, session: int) -> bool:
        """End the session number `session` of `node` by force, so that its leases are free at once; its owner gets
        `SessionLost`. Returns whether it was there: a later session of that node is never touched."""

    async def wait_change(self, timeout_s: float) -> None:
        """Return when something may have changed, after `wake`, or after `timeout_s` seconds. Spurious returns are
        allowed, missed changes are not beyond the timeout. Never raises on account of the coordinator."""

    def wake(self) -> None:
        """Make the `wait_change` in progress return at once, or else the next one."""
