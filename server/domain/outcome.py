"""How attempts end, and what then happens to the job.

Outcomes come from workers or from the reaper; `decide` turns one, with the attempt's facts, into a Decision: the job is
final, or goes back to pending. The store applies decisions, each keyed on (job, open claim).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import TypeAlias, assert_never

from server.domain.job import AttemptOutcome, AttemptRef, Backoff, JobState
from server.domain.retry import delay as retry_delay

# All control characters but line breaks and tabs, those of the second block too: U+009B starts a terminal's commands.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CUT = "\n[… cut …]\n"

MAX_ERROR_TYPE_CHARS = 200
MAX_ERROR_MESSAGE_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned."""

    result: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised an error."""

    error_type: str
    message: str
    retryable: bool = True
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to be run again after `delay`; no try is burned."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt ran over its time and has stopped, or its time to stop is over."""


@dataclass(frozen=True, slots=True)
class CancelConfirmed:
    """The attempt stopped because it was told to, other than by a timeout."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker shuts down and gives the attempt back; no try is burned."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The attempt never reached its worker; no try is burned."""


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker died or fell silent. Its result is still welcome until the next claim: work done is done."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The worker says that the handler completed the job in its own transaction, but the job is still there."""


Outcome: TypeAlias = (
    Completed | Failed | Snoozed | TimedOut | CancelConfirmed | Interrupted | Undelivered | WorkerLost | Committed
)


class AckStatus(Enum):
    """Fate of a result."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What has to be known of a running attempt to decide about it."""

    ref: AttemptRef
    handler_id: int
    attempt: int
    backoff: Backoff
    deadline_at: datetime | None
    cancel_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The job leaves in a final state, if the attempt is that of worker `worker_id`; None: whoever's it is."""

    ref: AttemptRef
    state: JobState
    worker_id: int | None = None
    result: bytes | None = None
    content_type: str | None = None
    error_type: str | None = None
    message: str | None = None
    outcome: AttemptOutcome | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """The job goes back to pending.

    `delay` None keeps its due time. `burn` says whether the try counts. `keep_open` leaves the claim open, so that the
    old worker's result is accepted until the next claim. `started` says whether the worker had it: the start timeout
    counts again only for a first try that never began. `worker_id` is as in `Finish`.
    """

    ref: AttemptRef
    delay: timedelta | None
    burn: bool
    worker_id: int | None = None
    keep_open: bool = False
    started: bool = True
    error_type: str | None = None
    message: str | None = None
    outcome: AttemptOutcome | None = None


Decision: TypeAlias = Finish | Requeue


class Ending(StrEnum):
    """How an attempt ended, for counting."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    INTERRUPTED = "interrupted"
    UNDELIVERED = "undelivered"


_ENDINGS = {
    AttemptOutcome.FAILED: Ending.FAILED,
    AttemptOutcome.TIMED_OUT: Ending.TIMED_OUT,
    AttemptOutcome.WORKER_LOST: Ending.WORKER_LOST,
    AttemptOutcome.CANCELLED: Ending.CANCELLED,
}


def ending_of(decision: Decision) -> Ending:
    """Return how the attempt ended that a decision is about."""
    if decision.outcome is not None:
        return _ENDINGS[decision.outcome]
    if isinstance(decision, Finish):
        return Ending.COMPLETED
    if not decision.started:
        return Ending.UNDELIVERED
    return Ending.SNOOZED if decision.delay is not None else Ending.INTERRUPTED


def needs_facts(outcome: Outcome) -> bool:
    """Whether `decide` looks at the attempt's facts for this outcome."""
    return not isinstance(outcome, Completed)


def completed(ref: AttemptRef, outcome: Completed, worker_id: int | None = None) -> Finish:
    """Return the decision for a completed attempt, which needs no facts."""
    return Finish(
        ref=ref,
        state=JobState.COMPLETED,
        worker_id=worker_id,
        result=outcome.result,
        content_type=outcome.content_type,
    )


def decide(outcome: Outcome, facts: AttemptFacts, now: datetime, draw: Callable[[], float]) -> Decision:
    """Return what happens to the job; `draw` gives random numbers in [0, 1) for the jitter."""
    ref = facts.ref
    match outcome:
        case Completed():
            return completed(ref, outcome)
        case Failed():
            return _unsuccessful(
                facts,
                AttemptOutcome.FAILED,
                outcome.error_type,
                outcome.message,
                now,
                draw,
                retryable=outcome.retryable and outcome.error_type not in facts.backoff.non_retryable,
                retry_after=outcome.retry_after,
            )
        case TimedOut():
            message = "the attempt ran over its time and was cancelled"
            return _unsuccessful(facts, AttemptOutcome.TIMED_OUT, "timeout", message, now, draw)
        case WorkerLost():
            message = "the worker died or fell silent while it ran the attempt"
            return _worker_lost(facts, message, now)
        case Committed():
            message = "the handler said that its transaction completed the job, but the transaction was not committed"
            return _unsuccessful(facts, AttemptOutcome.FAILED, "uncommitted", message, now, draw)
        case Snoozed():
            return _cancelled(ref) if facts.cancel_requested else Requeue(ref=ref, delay=outcome.delay, burn=False)
        case CancelConfirmed() | Interrupted():
            # A stop that no user asked for, such as that of a superseded attempt, must not end the job.
            return _cancelled(ref) if facts.cancel_requested else Requeue(ref=ref, delay=None, burn=False)
        case Undelivered():
            back = Requeue(ref=ref, delay=None, burn=False, started=False)
            return _cancelled(ref) if facts.cancel_requested else back
        case _:
            assert_never(outcome)


def _cancelled(ref: AttemptRef) -> Finish:
    return Finish(
        ref=ref,
        state=JobState.CANCELLED,
        error_type="cancelled",
        message="cancelled by a user while it ran",
        outcome=AttemptOutcome.CANCELLED,
    )


def _over_deadline(facts: AttemptFacts, now: datetime) -> bool:
    return facts.deadline_at is not None and facts.deadline_at <= now


def _worker_lost(facts: AttemptFacts, message: str, now: datetime) -> Decision:
    lost = AttemptOutcome.WORKER_LOST
    if facts.cancel_requested:
        return _cancelled(facts.ref)
    if facts.attempt >= facts.backoff.max_attempts or _over_deadline(facts, now):
        return Finish(ref=facts.ref, state=JobState.FAILED, error_type="worker_lost", message=message, outcome=lost)
    return Requeue(
        ref=facts.ref,
        delay=timedelta(0),
        burn=True,
        keep_open=True,
        error_type="worker_lost",
        message=message,
        outcome=lost,
    )


def _unsuccessful(
    facts: AttemptFacts,
    kind: AttemptOutcome,
    error_type: str,
    message: str,
    now: datetime,
    draw: Callable[[], float],
    *,
    retryable: bool = True,
    retry_after: timedelta | None = None,
) -> Decision:
    if facts.cancel_requested:
        return _cancelled(facts.ref)
    error_type, message = clean(error_type, MAX_ERROR_TYPE_CHARS), clean(message, MAX_ERROR_MESSAGE_CHARS)
    if retryable and facts.attempt < facts.backoff.max_attempts and not _over_deadline(facts, now):
        wait = retry_delay(facts.backoff, facts.attempt, draw(), retry_after)
        # A try that could start only after the deadline is not waited for.
        if facts.deadline_at is None or now + wait < facts.deadline_at:
            return Requeue(ref=facts.ref, delay=wait, burn=True, error_type=error_type, message=message, outcome=kind)
    if _over_deadline(facts, now) and kind is AttemptOutcome.TIMED_OUT:
        error_type, message = "total_timeout", "the job's total time is over"
    return Finish(ref=facts.ref, state=JobState.FAILED, error_type=error_type, message=message, outcome=kind)


def clean(text: str, limit: int) -> str:
    """Return `text` fit for storing and showing: no NUL or other control characters but line breaks and tabs, no lone
    surrogates, at most `limit` characters (20 or more); what is cut out of the middle is marked."""
    if len(text) > limit:
        half = (limit - len(_CUT)) // 2
        text = text[:half] + _CUT + text[len(text) - half :]
    text = text.encode("utf-8", "replace").decode("utf-8")
    return _CONTROLS.sub("�", text)
