"""How an attempt can end: the exceptions that handlers raise, and the values that a worker reports.

A handler that returns has completed its job. One that raises has failed, and the job is tried again by its retry
policy, except for the exceptions below.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from shardwheel.v1 import worker_service_pb2
from worker_sdk.durations import Span, as_timedelta


class CancelReason(IntEnum):
    """Why an attempt has to stop. The values up to 3 are those of the wire."""

    REQUESTED = worker_service_pb2.CANCEL_REQUESTED
    """A user cancelled the job."""
    TIMEOUT = worker_service_pb2.CANCEL_TIMEOUT
    """The attempt is over its time."""
    SUPERSEDED = worker_service_pb2.CANCEL_SUPERSEDED
    """Another attempt has taken its place; whatever this one reports is dropped."""
    SHUTDOWN = 100
    """The worker shuts down and its grace is over; the job is given back, no try is burned."""


class Snooze(Exception):
    """Raised by a handler: run the job again after `delay`. No try is burned."""

    def __init__(self, delay: Span) -> None:
        self.delay = as_timedelta(delay, "delay")
        super().__init__(f"snoozed for {self.delay}")


class RetryAfter(Exception):
    """Raised by a handler: the attempt failed; the next try starts after `delay` at the earliest."""

    def __init__(self, delay: Span, message: str = "") -> None:
        self.delay = as_timedelta(delay, "delay")
        super().__init__(message or f"to be retried after {self.delay}")


class NonRetryable(Exception):
    """Raised by a handler: the job has failed for good and must not be tried again."""


class Cancelled(Exception):
    """Raised by `Context.raise_if_cancelled`: the attempt was told to stop, and stops here."""

    def __init__(self, reason: CancelReason) -> None:
        self.reason = reason
        super().__init__(f"cancelled: {reason.name.lower()}")


@dataclass(slots=True, kw_only=True)
class Completed:
    """The handler returned."""

    result: bytes = b""
    content_type: str = ""


@dataclass(slots=True, kw_only=True)
class Failed:
    """The handler raised, or its input or output was unusable."""

    error_type: str
    message: str
    non_retryable: bool = False
    retry_after: timedelta | None = None


@dataclass(slots=True, kw_only=True)
class Snoozed:
    """The handler asked to be run again later."""

    delay: timedelta


@dataclass(slots=True, kw_only=True)
class Stopped:
    """The handler stopped because it was told to."""

    reason: CancelReason


@dataclass(slots=True, kw_only=True)
class Interrupted:
    """The worker shuts down; the attempt is given back."""


@dataclass(slots=True, kw_only=True)
class Committed:
    """The handler completed the job inside its own database transaction."""


Outcome = Completed | Failed | Snoozed | Stopped | Interrupted | Committed
"""How an attempt ended."""
