"""Between the messages of a worker's session and the engine's values."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import orjson
from google.protobuf.duration_pb2 import Duration

from server.api.convert import duration, timestamp
from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import (
    AckStatus,
    CancelConfirmed,
    Committed,
    Completed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    TimedOut,
)
from shardwheel.v1 import worker_service_pb2 as pb

_ACKS: Final = {
    AckStatus.ACCEPTED: pb.ResultAck.ACCEPTED,
    AckStatus.DUPLICATE: pb.ResultAck.DUPLICATE,
    AckStatus.STALE: pb.ResultAck.STALE,
}
_CANCELS: Final = {
    "requested": pb.CANCEL_REQUESTED,
    "timeout": pb.CANCEL_TIMEOUT,
    "superseded": pb.CANCEL_SUPERSEDED,
}
# A snooze or a retry_after longer than this is cut.
MAX_DELAY: Final = timedelta(days=3650)


def span(value: Duration) -> timedelta:
    """Return a protobuf duration as a span from 0 to `MAX_DELAY`; malformed ones are cut to that range."""
    seconds = min(max(value.seconds, 0), int(MAX_DELAY.total_seconds()))
    micros = min(max(value.nanos, 0), 999_999_999) // 1000
    return min(timedelta(seconds=seconds, microseconds=micros), MAX_DELAY)


def attempt_ref(ref: AttemptRef) -> pb.AttemptRef:
    """Return the name of an attempt as a message."""
    return pb.AttemptRef(job_id=ref.job_id, claim=ref.claim)


def ref_of(message: pb.AttemptRef) -> AttemptRef:
    """Return the name of an attempt from a message."""
    return AttemptRef(message.job_id, message.claim)


def result_acks(acks: Sequence[tuple[AttemptRef, AckStatus]]) -> pb.ResultAcks:
    """Return acknowledgements as a message."""
    return pb.ResultAcks(acks=[pb.ResultAck(attempt=attempt_ref(ref), status=_ACKS[status]) for ref, status in acks])


def cancels(items: Sequence[tuple[AttemptRef, str]]) -> pb.CancelBatch:
    """Return cancels as a message."""
    return pb.CancelBatch(
        cancels=[pb.Cancel(attempt=attempt_ref(ref), reason=_CANCELS[reason]) for ref, reason in items]
    )


def job_batch(jobs: Sequence[ClaimedJob], handler_names: Callable[[int], str]) -> pb.JobBatch:
    """Return claimed jobs as a message."""
    return pb.JobBatch(jobs=[assignment(job, handler_names(job.handler_id), as_of=job.started_at) for job in jobs])


def assignment(job: ClaimedJob, handler: str, *, as_of: datetime) -> pb.Assignment:
    """Return a job as a message that is made at a time of the database's clock."""
    message = pb.Assignment(
        job_id=job.job_id,
        claim=job.claim,
        epoch=job.epoch,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        handler=handler,
        payload=job.payload,
        content_type=job.content_type,
        name=job.name,
        due_at=timestamp(job.due_at),
        started_at=timestamp(job.started_at),
    )
    if job.scheduled_for is not None:
        message.scheduled_for.CopyFrom(timestamp(job.scheduled_for))
    if job.timeout_at is not None:
        message.time_left.CopyFrom(duration(max(timedelta(0), job.timeout_at - as_of)))
    if job.progress is not None:
        message.progress = job.progress
    if job.traceparent is not None:
        message.traceparent = job.traceparent
    if job.labels is not None:
        message.labels.update(orjson.loads(job.labels))
    return message


def outcome_of(result: pb.Result, max_result_bytes: int) -> Outcome:
    """Return what a result says; whatever cannot be stored becomes a failure, so that no attempt stays running."""
    match result.WhichOneof("outcome"):
        case "completed":
            return _completed(result.completed, max_result_bytes)
        case "failed":
            failed = result.failed
            return Failed(
                failed.error.type or "Error",
                failed.error.message,
                retryable=not failed.non_retryable,
                retry_after=span(failed.retry_after) if failed.HasField("retry_after") else None,
            )
        case "snoozed":
            return Snoozed(span(result.snoozed.delay))
        case "stopped":
            return TimedOut() if result.stopped.reason == pb.CANCEL_TIMEOUT else CancelConfirmed()
        case "interrupted":
            return Interrupted()
        case "committed":
            return Committed()
        case None:
            return Failed("UnknownOutcome", "the worker reported an outcome that this server does not know")


def _completed(message: pb.Completed, max_result_bytes: int) -> Outcome:
    if len(message.result) > max_result_bytes:
        text = f"the result has {len(message.result)} bytes, at most {max_result_bytes} are stored"
        return Failed("result_too_large", text, retryable=False)
    content_type = message.content_type.replace("\x00", "")[:200]
    return Completed(message.result, content_type)
