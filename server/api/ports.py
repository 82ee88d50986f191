"""What the API asks of the engine of its node, and of the cluster's coordination."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.domain.due import DueJob
from server.domain.handler import HandlerView
from server.domain.job import AttemptRef


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

    def handler_view(self, handler_id: int) -> HandlerView:
        """Return the connected workers of a handler."""

    def handler_changed(self, handler_id: int, *, paused: bool) -> None:
        """A handler was paused or resumed."""

    def cancel_requested(self, ref: AttemptRef, worker_id: int) -> None:
        """A running job was marked as cancelled in the database: tell its worker."""

    def job_finished(self, job_id: int) -> None:
        """A job became final by a request (a pending job was cancelled): wake those who wait for it."""

    def waiter(self, job_id: int) -> JobWaiter:
        """Return a waiter for the end of a job; make it before reading the job's state, and close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A node of the cluster; `state` is "up", "draining" or "unhealthy"."""

    node: str
    address: str
    state: str
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """Who should serve which shard; version 0 before the first plan."""

    version: int = 0
    owners: Mapping[int, str] = field(default_factory=dict)


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
