"""Policies of jobs: how failed attempts are tried again, and limits on time."""

from dataclasses import dataclass

from shardwheel.v1 import job_pb2
from worker_sdk.durations import Span, as_timedelta
from worker_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How failed attempts are tried again: exponential back-off with full jitter.

    The delay before try n+1 is drawn evenly from 0 to `min(max_delay, initial_delay * multiplier ** (n - 1))`. What is
    None takes its value from the handler's registration, else from the namespace, else from the server.
    """

    max_attempts: int | None = None
    """Number of tries in all, the first one included. The server's default is 4."""
    initial_delay: Span | None = None
    """Upper bound of the first delay. The server's default is 1 s."""
    multiplier: float | None = None
    """Growth of the upper bound per try. The server's default is 2."""
    max_delay: Span | None = None
    """Cap of the upper bound. The server's default is 1 h."""
    non_retryable_error_types: tuple[str, ...] = ()
    """Names of exception classes that end the job at once."""

    def __post_init__(self) -> None:
        """Refuse values that mean something else on the wire."""
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigurationError(f"max_attempts: {self.max_attempts} is too small; the first try counts, so give 1")
        if self.multiplier is not None and self.multiplier <= 0:
            raise ConfigurationError(f"multiplier: {self.multiplier} is too small; 1 keeps the delay constant")
        for name in ("initial_delay", "max_delay"):
            span = getattr(self, name)
            if span is not None:
                as_timedelta(span, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits on time. A limit that is None takes its value from the registration, the namespace or the server."""

    start: Span | None = None
    """The first attempt has to start within this time of the due time, else the job fails and is not retried."""
    attempt: Span | None = None
    """Each attempt may run this long; then it is cancelled and counts as a failed, retryable try."""
    total: Span | None = None
    """All tries together, from the due time; then the job fails."""

    def __post_init__(self) -> None:
        """Refuse what is no span of time, and zero, which would mean "no limit" on the wire."""
        for name in ("start", "attempt", "total"):
            span = getattr(self, name)
            if span is not None and not as_timedelta(span, name):
                raise ConfigurationError(f"{name}: a limit of zero cannot be kept; leave it out for no limit")


def retry_to_proto(policy: RetryPolicy) -> job_pb2.RetryPolicy:
    """Return the wire form."""
    message = job_pb2.RetryPolicy(
        max_attempts=policy.max_attempts or 0,
        multiplier=policy.multiplier or 0.0,
        non_retryable_error_types=policy.non_retryable_error_types,
    )
    if policy.initial_delay is not None:
        message.initial_delay.FromTimedelta(as_timedelta(policy.initial_delay, "initial_delay"))
    if policy.max_delay is not None:
        message.max_delay.FromTimedelta(as_timedelta(policy.max_delay, "max_delay"))
    return message


def retry_from_proto(message: job_pb2.RetryPolicy) -> RetryPolicy:
    """Return the value of a wire form."""
    return RetryPolicy(
        max_attempts=message.max_attempts or None,
        initial_delay=message.initial_delay.ToTimedelta() if message.HasField("initial_delay") else None,
        multiplier=message.multiplier or None,
        max_delay=message.max_delay.ToTimedelta() if message.HasField("max_delay") else None,
        non_retryable_error_types=tuple(message.non_retryable_error_types),
    )


def timeouts_to_proto(timeouts: Timeouts) -> job_pb2.Timeouts:
    """Return the wire form."""
    message = job_pb2.Timeouts()
    if timeouts.start is not None:
        message.start_timeout.FromTimedelta(as_timedelta(timeouts.start, "start"))
    if timeouts.attempt is not None:
        message.attempt_timeout.FromTimedelta(as_timedelta(timeouts.attempt, "attempt"))
    if timeouts.total is not None:
        message.total_timeout.FromTimedelta(as_timedelta(timeouts.total, "total"))
    return message


def timeouts_from_proto(message: job_pb2.Timeouts) -> Timeouts:
    """Return the value of a wire form."""
    return Timeouts(
        start=(message.start_timeout.ToTimedelta() or None) if message.HasField("start_timeout") else None,
        attempt=(message.attempt_timeout.ToTimedelta() or None) if message.HasField("attempt_timeout") else None,
        total=(message.total_timeout.ToTimedelta() or None) if message.HasField("total_timeout") else None,
    )
