"""Jobs as the server knows them: values only."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Final

MIN_PRIORITY: Final = 1
MAX_PRIORITY: Final = 5
DEFAULT_PRIORITY: Final = 3


class JobState(IntEnum):
    """Where a job stands; the numbers are the ones stored.

    PENDING → RUNNING → COMPLETED, or back to PENDING for another try. PARKED is a pending job that waits behind its
    concurrency key, outside the due index; users see it as pending.
    """

    PENDING = 0
    RUNNING = 1
    PARKED = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def final(self) -> bool:
        """Whether nothing more happens to the job by itself."""
        return self >= JobState.COMPLETED


class AttemptOutcome(IntEnum):
    """How an unsuccessful attempt ended; the numbers are the ones stored."""

    FAILED = 1
    TIMED_OUT = 2
    WORKER_LOST = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The retry policy of a job as it is stored."""

    max_attempts: int = 4
    initial: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    maximum: timedelta = timedelta(hours=1)
    non_retryable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits on time; None means no limit."""

    start: timedelta | None = None
    attempt: timedelta | None = None
    total: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupeKey:
    """What makes a submit idempotent: the key, how long it is kept at least, and a hash of the job's content."""

    key: str
    ttl: timedelta
    content_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A validated job with every policy resolved, ready to be stored.

    `due_at` None means now plus `delay`, by the database clock. `schedule_id` is set for jobs that a schedule made.
    """

    namespace_id: int
    handler_id: int
    payload: bytes
    content_type: str = ""
    name: str = ""
    priority: int = DEFAULT_PRIORITY
    due_at: datetime | None = None
    delay: timedelta = timedelta(0)
    backoff: Backoff = field(default_factory=Backoff)
    limits: TimeLimits = field(default_factory=TimeLimits)
    dedupe: DedupeKey | None = None
    concurrency_key: str | None = None
    concurrency_limit: int = 1
    labels: bytes | None = None
    traceparent: str | None = None
    schedule_id: int | None = None
    scheduled_for: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of a submitted job; the times are set only if it was created."""

    job_id: int
    created: bool
    differs: bool = False
    due_at: datetime | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, order=True)
class AttemptRef:
    """Names one execution of a job."""

    job_id: int
    claim: int


@dataclass(slots=True, kw_only=True)
class ClaimedJob:
    """A job that was just bound to a worker, with everything the worker needs."""

    job_id: int
    claim: int
    epoch: int
    attempt: int
    max_attempts: int
    namespace_id: int
    handler_id: int
    worker_id: int
    priority: int
    name: str
    payload: bytes
    content_type: str
    due_at: datetime
    scheduled_for: datetime | None
    started_at: datetime
    timeout_at: datetime | None
    progress: bytes | None
    traceparent: str | None
    labels: bytes | None
    concurrency_key: str | None

    @property
    def ref(self) -> AttemptRef:
        """The execution's name."""
        return AttemptRef(self.job_id, self.claim)
