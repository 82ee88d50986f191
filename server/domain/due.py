"""What is due, as the engine and the store talk about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from server.domain.job import ClaimedJob

# Lower bound of a probe that has none.
NO_BOUND: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class DueJob:
    """A pending job as `sweep` and `peek` see it; the order is that of claiming within a handler."""

    priority: int
    due_at: datetime
    job_id: int
    shard: int
    handler_id: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What to claim from one (shard, handler): a worker for each slot, and a lower bound of due_at per priority."""

    shard: int
    handler_id: int
    workers: Sequence[int]
    bounds: Sequence[datetime]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The claimed jobs, the shards that still were ours, and the database clock.

    `parked` counts jobs that were found due but put aside behind their concurrency key.
    """

    jobs: list[ClaimedJob]
    live_shards: frozenset[int]
    now: datetime | None
    parked: int = 0
