"""Outcomes of attempts in their wire form."""

from typing import assert_never

from shardwheel.v1 import job_pb2, worker_service_pb2
from shardwheel.v1.worker_service_pb2 import AttemptRef, Result
from worker_sdk.attempt import Attempt
from worker_sdk.outcomes import CancelReason, Committed, Completed, Failed, Interrupted, Outcome, Snoozed, Stopped

_NOTHING = worker_service_pb2.Completed()
_INTERRUPTED = worker_service_pb2.Interrupted()
_COMMITTED = worker_service_pb2.Committed()
_REASONS: dict[CancelReason, worker_service_pb2.CancelReason.ValueType] = {
    CancelReason.REQUESTED: worker_service_pb2.CANCEL_REQUESTED,
    CancelReason.TIMEOUT: worker_service_pb2.CANCEL_TIMEOUT,
    CancelReason.SUPERSEDED: worker_service_pb2.CANCEL_SUPERSEDED,
}


def reference(attempt: Attempt) -> AttemptRef:
    """Return what names an attempt on the wire."""
    return AttemptRef(job_id=attempt.job_id, claim=attempt.claim)


def result_message(attempt: Attempt, outcome: Outcome) -> Result:
    """Return the message that reports how an attempt ended."""
    name = AttemptRef(job_id=attempt.job_id, claim=attempt.claim)
    match outcome:
        case Completed():
            if not outcome.result:
                return Result(attempt=name, completed=_NOTHING)
            completed = worker_service_pb2.Completed(result=outcome.result, content_type=outcome.content_type)
            return Result(attempt=name, completed=completed)
        case Failed():
            error = job_pb2.JobError(type=outcome.error_type, message=outcome.message)
            failed = worker_service_pb2.Failed(error=error, non_retryable=outcome.non_retryable)
            if outcome.retry_after is not None:
                failed.retry_after.FromTimedelta(outcome.retry_after)
            return Result(attempt=name, failed=failed)
        case Snoozed():
            snoozed = worker_service_pb2.Snoozed()
            snoozed.delay.FromTimedelta(outcome.delay)
            return Result(attempt=name, snoozed=snoozed)
        case Stopped():
            return Result(attempt=name, stopped=worker_service_pb2.Stopped(reason=_REASONS[outcome.reason]))
        case Interrupted():
            return Result(attempt=name, interrupted=_INTERRUPTED)
        case Committed():
            return Result(attempt=name, committed=_COMMITTED)
        case _:
            assert_never(outcome)
