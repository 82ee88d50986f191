"""What the API asks of the engine of its node, and of the cluster's coordination."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from server.domain.due import DueJob
from server.domain.handler import HandlerView
from server.domain.job import AttemptRef, NewJob, Submitted
from server.store.catalog import Handler


class JobWaiter(Protocol):
    """Told once when a job becomes final on this node."""

    async def wait(self, timeout: float) -> bool:
        """Return True as soon as the job is known to be final, False after `timeout` seconds."""

    def close(self) -> None:
        """Stop waiting."""


class EngineHandle(Protocol):
    """The engine of this node; nothing here blocks or fails."""

    def jobs_added(self, jobs: Sequence[DueJob]) -> None:
        """Jobs were committed, or became due: their shards' owner should look."""

    def owned_shards(self) -> Sequence[int]:
        """Return the shards that this node owns now, ascending."""

    def key_freed(self, shard: int, namespace_id: int, key: str) -> None:
        """There is room for one more job under a concurrency key."""

    def handler_view(self, handler_id: int) -> HandlerView:
        """Return the workers of a handler that are connected to this node."""

    def handler_changed(self, handler_id: int, *, paused: bool) -> None:
        """A handler was paused or resumed by a request."""

    def cancel_requested(self, ref: AttemptRef, worker_id: int) -> None:
        """A running job was marked as cancelled in the database: tell its worker."""

    def job_finished(self, job_id: int) -> None:
        """A job became final by a request (a pending job was cancelled): wake those who wait for it."""

    def published_job_ended(self, ref: AttemptRef) -> None:
        """A job that was published, and not started, became final by a request."""

    def waiter(self, job_id: int) -> JobWaiter:
        """Return a waiter for the end of a job; make it before reading the job's state, and close it."""

    def watch(self, job_id: int) -> None:
        """Ask for news of the job's end from the owner of its shard; to be repeated every few seconds."""


class SubmitTrace(Protocol):
    """Traces jobs that are stored."""

    def stored(self, jobs: Sequence[tuple[NewJob, Submitted]], began_ns: int) -> None:
        """Take in that jobs were stored by a call that began at `began_ns`, in nanoseconds since 1970."""


class HandlerPublishing(Protocol):
    """What publishes jobs of some handlers."""

    @property
    def available(self) -> bool:
        """Whether this node was given a broker."""

    async def changed(self, handler: Handler) -> None:
        """A handler's jobs are to be handed out in another way, by a request."""


class Owners(Protocol):
    """The owners of shards, as far as they are other nodes."""

    async def handler_view(self, shard: int, handler_id: int) -> HandlerView | None:
        """Return the workers of a handler that are connected to the owner of a shard; None if the owner is this node,
        is not known, or does not answer soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A node of the cluster; `state` is "up", "draining", "unhealthy", "drained" or "evicted". `joined_at` is when its
    session began by the coordinator's clock, None if that is unknown."""

    node: str
    address: str
    state: str
    weight: int
    incarnation: int = 0
    joined_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PinView:
    """A shard stays with a node until an instant, None: until it is moved."""

    shard: int
    node: str
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """Who should serve which shard; version 0 before the first plan.

    `planned_for_s`: for how many seconds a shard has been planned to be where it is, `missing_for_s`: for how many
    seconds a node with shards has been missing; both as far as this node has seen it.
    """

    version: int = 0
    owners: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""
    paused: bool = False
    drained: Sequence[str] = ()
    evicted: Sequence[str] = ()
    pins: Sequence[PinView] = ()
    planned_for_s: Mapping[int, float] = field(default_factory=dict)
    missing_for_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveView:
    """A shard changes its owner; empty names stand for none."""

    shard: int
    source: str
    target: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChangeView:
    """What an order did, or would do; `before` and `after` are shards per node."""

    version: int
    moves: Sequence[MoveView]
    before: Mapping[str, int]
    after: Mapping[str, int]


class ClusterView(Protocol):
    """What this node last saw of the cluster; nothing here blocks or fails."""

    @property
    def kind(self) -> str:
        """Kind of the coordinator: "postgres" or "zookeeper"."""

    def members(self) -> Sequence[MemberView]:
        """Return the live nodes, this one included."""

    def leader(self) -> str:
        """Return the leader's name, empty if there is none or it is unknown."""

    def plan(self) -> PlanView:
        """Return the plan in force."""

    def trouble(self) -> str:
        """Say what keeps this node from working with the coordinator, empty if nothing does."""


class ClusterOrders(Protocol):
    """Orders that this node carries out if it leads.

    All raise `NotLeading` if it does not, other errors of the API if the order cannot be obeyed, and wait for the
    coordinator for as long as the caller does.
    """

    async def rebalance(self, *, dry_run: bool, expected_version: int) -> PlanChangeView:
        """Bring the shards into balance, or tell how; `expected_version` 0: whatever version the plan has."""

    async def drain(self, node: str, *, force: bool) -> PlanChangeView:
        """Take a node's shards away gracefully and give it none."""

    async def undrain(self, node: str) -> PlanChangeView:
        """Let a drained or evicted node have shards again."""

    async def evict(self, node: str, *, force: bool, incarnation: int) -> PlanChangeView:
        """Take a process's shards away without its help and give it none; `incarnation` 0: the one that is there."""

    async def move(self, shard: int, node: str, pin: timedelta | None) -> PlanChangeView:
        """Give a shard to a node, and keep it there for `pin`."""

    async def pause(self) -> PlanChangeView:
        """Make no moves for balance."""

    async def resume(self) -> PlanChangeView:
        """Make moves for balance again."""

    async def end_session_of(self, node: str) -> bool:
        """End the session of a node that leads and does not answer, whoever leads; say whether it had one."""
