"""Jobs as a client sees them: what it asks for, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

from worker_sdk.codec import JSON_TYPE
from worker_sdk.errors import ConfigurationError, PayloadError
from worker_sdk.json_text import load_json

if TYPE_CHECKING:
    from worker_sdk.durations import Span
    from worker_sdk.policies import RetryPolicy, Timeouts


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    """Not running: not due yet, due and waiting, or backing off after a failed try."""
    RUNNING = "running"
    """An attempt runs on a worker."""
    COMPLETED = "completed"
    """Final: the handler returned."""
    FAILED = "failed"
    """Final: out of tries, refused to be retried, or out of time."""
    CANCELLED = "cancelled"
    """Final: cancelled by a user."""

    @property
    def final(self) -> bool:
        """Whether the state cannot change any more, unless the job is retried by hand."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class WaitingReason(StrEnum):
    """Why a pending job does not run."""

    NOT_DUE = "not_due"
    NO_WORKER = "no_worker"
    NO_FREE_SLOT = "no_free_slot"
    HANDLER_PAUSED = "handler_paused"
    SHARD_WITHOUT_OWNER = "shard_without_owner"
    BACKING_OFF = "backing_off"
    QUEUED_BEHIND_KEY = "queued_behind_key"


class AttemptOutcome(StrEnum):
    """How an unsuccessful attempt ended."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"


class SubmitOptions(TypedDict, total=False):
    """What can be said about a job beside its handler and payload. All keys are described in `NewJob`."""

    name: str
    priority: int | None
    due_at: datetime | None
    delay: "Span | None"
    retry: "RetryPolicy | None"
    timeouts: "Timeouts | None"
    dedupe_key: str
    dedupe_ttl: "Span | None"
    concurrency_key: str
    concurrency_limit: int | None
    labels: Mapping[str, str]
    traceparent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be submitted. Policies left out come from the handler's registration, the namespace or the server."""

    handler: str
    """Name of the worker code that executes the job."""
    payload: object = None
    """Input of the handler: bytes, or whatever the client's codec can encode."""
    name: str = ""
    """Name for people; need not be unique."""
    priority: int | None = None
    """1 (most urgent) to 5. The default is 3."""
    due_at: datetime | None = None
    """When the job becomes due; aware of its time zone. Left out, or in the past: at once."""
    delay: "Span | None" = None
    """Time until the job becomes due, by the database's clock, instead of `due_at`."""
    retry: "RetryPolicy | None" = None
    """How failed attempts are tried again."""
    timeouts: "Timeouts | None" = None
    """Limits on time."""
    dedupe_key: str = ""
    """Makes the submit idempotent: the same key again answers with the existing job."""
    dedupe_ttl: "Span | None" = None
    """How long the dedupe key is kept. At least 10 minutes and while the job is live."""
    concurrency_key: str = ""
    """Jobs with the same key run at most `concurrency_limit` at a time."""
    concurrency_limit: int | None = None
    """How many jobs of the key may run at a time. The default is 1."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Up to 32 labels for finding jobs."""
    traceparent: str = ""
    """W3C trace context of the submitter; handed to the worker on every attempt."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself or means something else on the wire."""
        if self.due_at is not None and self.delay is not None:
            raise ConfigurationError("delay: cannot be combined with due_at; give one of them")
        if self.due_at is not None and self.due_at.tzinfo is None:
            raise ConfigurationError("due_at: has no time zone; write for example datetime(…, tzinfo=UTC)")
        if self.priority is not None and not 1 <= self.priority <= 5:
            raise ConfigurationError(f"priority: {self.priority} is not 1 (most urgent) to 5")
        if self.concurrency_limit is not None and self.concurrency_limit < 1:
            raise ConfigurationError(f"concurrency_limit: {self.concurrency_limit} is too small; give at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of a submit."""

    job_id: int
    """The job, or the existing one with the same dedupe key."""
    created: bool
    """Whether this call stored the job."""
    differs: bool = False
    """The dedupe key belongs to a job with other content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """How far a bulk submit has come."""

    created: int = 0
    """Jobs stored by this call."""
    existing: int = 0
    """Jobs that existed already under their dedupe key."""
    differing: int = 0
    """Among the existing ones, those with other content."""

    @property
    def stored(self) -> int:
        """Jobs of the input that are stored, by this call or before."""
        return self.created + self.existing


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """An error as the worker or the server described it."""

    type: str
    """The exception's class name, or a word of the server such as "timeout" or "worker_lost"."""
    message: str
    """Text for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """One unsuccessful execution of a job."""

    attempt: int
    claim: int
    worker: str
    started_at: datetime | None
    ended_at: datetime | None
    outcome: AttemptOutcome | None
    error: JobError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the server shows it. All instants are in UTC."""

    id: int
    namespace: str
    handler: str
    state: JobState
    name: str
    priority: int
    due_at: datetime | None
    """When the job is or became due; after a failed try, when the next one is due."""
    payload: bytes
    """Left out by `list`."""
    content_type: str
    attempt: int
    """Tries so far."""
    claim: int
    """Times the job was claimed so far."""
    retry: "RetryPolicy"
    timeouts: "Timeouts"
    deadline_at: datetime | None
    """When all tries must have ended."""
    concurrency_key: str
    concurrency_limit: int
    labels: Mapping[str, str]
    created_at: datetime | None
    started_at: datetime | None
    """When the latest attempt started."""
    finished_at: datetime | None
    worker: str
    """Worker of the latest attempt."""
    schedule_id: int | None
    """Schedule that made the job."""
    scheduled_for: datetime | None
    """Nominal time of the schedule's firing."""
    result: bytes
    """Left out by `list`."""
    result_content_type: str
    error: JobError | None
    """Of a failed job, or of the latest unsuccessful attempt."""
    progress: bytes
    """Latest progress that the handler reported."""
    waiting_because: WaitingReason | None
    """Only `get` fills it."""
    cancel_requested: bool
    traceparent: str
    attempts: tuple[JobAttempt, ...]
    """Unsuccessful attempts, the oldest first. Only `get` fills it."""

    def payload_json(self) -> object:
        """Return the parsed JSON payload. Raises `PayloadError` if it is something else."""
        return _json(self.payload, self.content_type, "payload")

    def result_json(self) -> object:
        """Return the parsed JSON result, None for no result. Raises `PayloadError` if it is something else."""
        return _json(self.result, self.result_content_type, "result")


def _json(data: bytes, content_type: str, what: str) -> object:
    if not data:
        return None
    if content_type != JSON_TYPE:
        raise PayloadError(f"{what} is {content_type or 'of unknown type'}, not {JSON_TYPE}")
    return load_json(data)
