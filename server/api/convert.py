"""Between messages and values: instants, spans, policies, jobs. Messages are valid when they come here."""

from datetime import UTC, datetime, timedelta
from typing import Final

import orjson
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from server.domain.job import Backoff, JobState, TimeLimits
from server.domain.policies import NO_POLICIES, Policies
from server.store.jobs_read import AttemptRecord, JobRecord
from shardwheel.v1.job_pb2 import Attempt, Job, JobError, RetryPolicy, Timeouts

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

STATES: Final = {
    JobState.PENDING: Job.PENDING,
    JobState.PARKED: Job.PENDING,
    JobState.RUNNING: Job.RUNNING,
    JobState.COMPLETED: Job.COMPLETED,
    JobState.FAILED: Job.FAILED,
    JobState.CANCELLED: Job.CANCELLED,
}


def instant(value: Timestamp) -> datetime:
    """Return the instant of a timestamp, rounded up to microseconds so that nothing happens early."""
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=-(-value.nanos // 1000))


def span(value: Duration) -> timedelta:
    """Return the length of a duration, rounded up to microseconds."""
    return timedelta(seconds=value.seconds, microseconds=-(-value.nanos // 1000))


def timestamp(value: datetime) -> Timestamp:
    """Return an instant as a message."""
    micros = (value - _EPOCH) // _MICROSECOND
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def duration(value: timedelta) -> Duration:
    """Return a length of time, not negative, as a message."""
    micros = value // _MICROSECOND
    return Duration(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def policies_of(retry: RetryPolicy, timeouts: Timeouts) -> Policies:
    """Return the policies that messages give; fields that are not set are left open."""
    policies = Policies(
        max_attempts=retry.max_attempts or None,
        initial=span(retry.initial_delay) if retry.HasField("initial_delay") else None,
        multiplier=retry.multiplier or None,
        maximum=span(retry.max_delay) if retry.HasField("max_delay") else None,
        non_retryable=tuple(retry.non_retryable_error_types) or None,
        start=span(timeouts.start_timeout) if timeouts.HasField("start_timeout") else None,
        attempt=span(timeouts.attempt_timeout) if timeouts.HasField("attempt_timeout") else None,
        total=span(timeouts.total_timeout) if timeouts.HasField("total_timeout") else None,
    )
    return NO_POLICIES if policies == NO_POLICIES else policies


def retry_message(policies: Policies) -> RetryPolicy:
    """Return the part of policies that is about retries, as far as it is given."""
    message = RetryPolicy(
        max_attempts=policies.max_attempts or 0,
        multiplier=policies.multiplier or 0.0,
        non_retryable_error_types=policies.non_retryable or (),
    )
    if policies.initial is not None:
        message.initial_delay.CopyFrom(duration(policies.initial))
    if policies.maximum is not None:
        message.max_delay.CopyFrom(duration(policies.maximum))
    return message


def timeouts_message(policies: Policies) -> Timeouts:
    """Return the part of policies that limits time, as far as it is given."""
    return limits_message(TimeLimits(start=policies.start, attempt=policies.attempt, total=policies.total))


def backoff_message(backoff: Backoff) -> RetryPolicy:
    """Return the retry policy of a job."""
    return RetryPolicy(
        max_attempts=backoff.max_attempts,
        initial_delay=duration(backoff.initial),
        multiplier=backoff.multiplier,
        max_delay=duration(backoff.maximum),
        non_retryable_error_types=backoff.non_retryable,
    )


def limits_message(limits: TimeLimits) -> Timeouts:
    """Return the limits on time of a job; those that do not exist are left out."""
    return Timeouts(
        start_timeout=None if limits.start is None else duration(limits.start),
        attempt_timeout=None if limits.attempt is None else duration(limits.attempt),
        total_timeout=None if limits.total is None else duration(limits.total),
    )


def job_message(job: JobRecord, namespace: str, handler: str) -> Job:
    """Return a job as clients see it, as far as its record says."""
    message = Job(
        id=job.job_id,
        namespace=namespace,
        name=job.name,
        handler=handler,
        priority=job.priority,
        state=STATES[job.state],
        due_at=timestamp(job.due_at),
        payload=job.payload,
        content_type=job.content_type,
        attempt=job.attempt,
        claim=job.claim,
        retry=backoff_message(job.backoff),
        timeouts=limits_message(job.limits),
        deadline_at=_optional(job.deadline_at),
        concurrency_key=job.concurrency_key or "",
        concurrency_limit=job.concurrency_limit if job.concurrency_key else 0,
        labels=orjson.loads(job.labels) if job.labels else None,
        created_at=timestamp(job.created_at),
        started_at=_optional(job.started_at),
        finished_at=_optional(job.finished_at),
        worker=job.worker,
        schedule_id=job.schedule_id or 0,
        scheduled_for=_optional(job.scheduled_for),
        result=job.result or b"",
        result_content_type=job.result_content_type or "",
        progress=job.progress or b"",
        cancel_requested=job.cancel_requested,
        traceparent=job.traceparent or "",
    )
    if job.error_type is not None or job.error_message is not None:
        message.error.CopyFrom(JobError(type=job.error_type or "", message=job.error_message or ""))
    return message


def attempt_message(attempt: AttemptRecord) -> Attempt:
    """Return an unsuccessful attempt as clients see it."""
    return Attempt(
        attempt=attempt.attempt,
        claim=attempt.claim,
        worker=attempt.worker,
        started_at=_optional(attempt.started_at),
        ended_at=timestamp(attempt.ended_at),
        outcome=Attempt.Outcome.ValueType(attempt.outcome),
        error=JobError(type=attempt.error_type, message=attempt.error_message),
    )


def _optional(value: datetime | None) -> Timestamp | None:
    return None if value is None else timestamp(value)
