"""Running attempts and their ends, as the engine and the store talk about them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from server.domain.job import AttemptRef, JobState
from server.domain.outcome import AttemptFacts

# Bounds for which leases count as over: no lease at all, or every one that is over by now.
NO_LEASE: Final = datetime(2000, 1, 1, tzinfo=UTC)
ANY_LEASE: Final = datetime(9999, 1, 1, tzinfo=UTC)


class Recheck(Enum):
    """What a fenced ending checks again inside its statement."""

    OPEN = "open"
    WORKER_LOST = "worker lost"
    TIMED_OUT = "timed out"
    NOT_STARTED = "not started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that a statement has ended."""

    ref: AttemptRef
    shard: int
    handler_id: int
    worker_id: int | None
    namespace_id: int
    concurrency_key: str | None
    schedule_id: int | None
    state: JobState
    priority: int
    due_at: datetime


@dataclass(frozen=True, slots=True)
class FencedEnds:
    """What a fenced statement ended, and the shards that still were ours."""

    ended: list[Ended]
    live_shards: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A running row as the owner sees it."""

    facts: AttemptFacts
    shard: int
    handler_id: int
    worker_id: int
    claim_epoch: int
    timeout_at: datetime | None
    overdue: bool
    key: tuple[int, str] | None
    """Namespace and concurrency key of a job that has one."""

    @property
    def ref(self) -> AttemptRef:
        """The execution's name."""
        return self.facts.ref
