"""Jobs from and to their wire form."""

import uuid
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from shardwheel.v1 import job_pb2
from worker_sdk.codec import Codec, encode_value
from worker_sdk.durations import as_timedelta
from worker_sdk.errors import ConfigurationError
from worker_sdk.jobs import AttemptOutcome, Job, JobAttempt, JobError, JobState, NewJob, WaitingReason
from worker_sdk.policies import retry_from_proto, retry_to_proto, timeouts_from_proto, timeouts_to_proto

_STATES: dict[int, JobState] = {
    job_pb2.Job.PENDING: JobState.PENDING,
    job_pb2.Job.RUNNING: JobState.RUNNING,
    job_pb2.Job.COMPLETED: JobState.COMPLETED,
    job_pb2.Job.FAILED: JobState.FAILED,
    job_pb2.Job.CANCELLED: JobState.CANCELLED,
}

_STATES_TO_PROTO: dict[JobState, job_pb2.Job.State.ValueType] = {
    JobState.PENDING: job_pb2.Job.PENDING,
    JobState.RUNNING: job_pb2.Job.RUNNING,
    JobState.COMPLETED: job_pb2.Job.COMPLETED,
    JobState.FAILED: job_pb2.Job.FAILED,
    JobState.CANCELLED: job_pb2.Job.CANCELLED,
}

_WAITING: dict[int, WaitingReason] = {
    job_pb2.Job.NOT_DUE: WaitingReason.NOT_DUE,
    job_pb2.Job.NO_WORKER: WaitingReason.NO_WORKER,
    job_pb2.Job.NO_FREE_SLOT: WaitingReason.NO_FREE_SLOT,
    job_pb2.Job.HANDLER_PAUSED: WaitingReason.HANDLER_PAUSED,
    job_pb2.Job.SHARD_WITHOUT_OWNER: WaitingReason.SHARD_WITHOUT_OWNER,
    job_pb2.Job.BACKING_OFF: WaitingReason.BACKING_OFF,
    job_pb2.Job.QUEUED_BEHIND_KEY: WaitingReason.QUEUED_BEHIND_KEY,
}

_OUTCOMES: dict[int, AttemptOutcome] = {
    job_pb2.Attempt.FAILED: AttemptOutcome.FAILED,
    job_pb2.Attempt.TIMED_OUT: AttemptOutcome.TIMED_OUT,
    job_pb2.Attempt.WORKER_LOST: AttemptOutcome.WORKER_LOST,
    job_pb2.Attempt.CANCELLED: AttemptOutcome.CANCELLED,
}


def instant_to_proto(instant: datetime, field: str) -> Timestamp:
    """Return the wire form of an instant. Raises `ConfigurationError` naming `field` if it has no time zone."""
    if instant.tzinfo is None:
        raise ConfigurationError(f"{field}: {instant!r} has no time zone; write for example datetime(…, tzinfo=UTC)")
    message = Timestamp()
    message.FromDatetime(instant.astimezone(UTC))
    return message


def instant_from_proto(message: Timestamp) -> datetime:
    """Return the instant, in UTC, of a wire form."""
    return message.ToDatetime(tzinfo=UTC)


def job_spec(job: NewJob, codec: Codec, *, retry_safe: bool) -> job_pb2.JobSpec:
    """Return the wire form of a job to be submitted.

    With `retry_safe` a job without a dedupe key gets a random one, so that a submit whose answer was lost can be sent
    again without making a second job. Raises `PayloadError` if the payload cannot be encoded.
    """
    payload, content_type = encode_value(codec, job.payload)
    message = job_pb2.JobSpec(
        handler=job.handler,
        payload=payload,
        content_type=content_type,
        name=job.name,
        priority=job.priority or 0,
        dedupe_key=job.dedupe_key or (f"auto/{uuid.uuid4()}" if retry_safe else ""),
        concurrency_key=job.concurrency_key,
        concurrency_limit=job.concurrency_limit or 0,
        traceparent=job.traceparent,
    )
    if job.labels:
        message.labels.update(job.labels)
    if job.due_at is not None:
        message.due_at.CopyFrom(instant_to_proto(job.due_at, "due_at"))
    if job.delay is not None:
        message.delay.FromTimedelta(as_timedelta(job.delay, "delay"))
    if job.dedupe_ttl is not None:
        message.dedupe_ttl.FromTimedelta(as_timedelta(job.dedupe_ttl, "dedupe_ttl"))
    if job.retry is not None:
        message.retry.CopyFrom(retry_to_proto(job.retry))
    if job.timeouts is not None:
        message.timeouts.CopyFrom(timeouts_to_proto(job.timeouts))
    return message


def state_to_proto(state: JobState) -> job_pb2.Job.State.ValueType:
    """Return the wire form of a state."""
    return _STATES_TO_PROTO[state]


def state_from_proto(state: int) -> JobState | None:
    """Return the state of a wire form; None if there is none or it is not known here."""
    return _STATES.get(state)


def job_from_proto(message: job_pb2.Job) -> Job:
    """Return the job of a wire form."""
    return Job(
        id=message.id,
        namespace=message.namespace,
        handler=message.handler,
        # A state that a newer server may have is neither final nor running for us.
        state=_STATES.get(message.state, JobState.PENDING),
        name=message.name,
        priority=message.priority,
        due_at=instant_from_proto(message.due_at) if message.HasField("due_at") else None,
        payload=message.payload,
        content_type=message.content_type,
        attempt=message.attempt,
        claim=message.claim,
        retry=retry_from_proto(message.retry),
        timeouts=timeouts_from_proto(message.timeouts),
        deadline_at=instant_from_proto(message.deadline_at) if message.HasField("deadline_at") else None,
        concurrency_key=message.concurrency_key,
        concurrency_limit=message.concurrency_limit,
        labels=dict(message.labels),
        created_at=instant_from_proto(message.created_at) if message.HasField("created_at") else None,
        started_at=instant_from_proto(message.started_at) if message.HasField("started_at") else None,
        finished_at=instant_from_proto(message.finished_at) if message.HasField("finished_at") else None,
        worker=message.worker,
        schedule_id=message.schedule_id or None,
        scheduled_for=instant_from_proto(message.scheduled_for) if message.HasField("scheduled_for") else None,
        result=message.result,
        result_content_type=message.result_content_type,
        error=_error(message.error) if message.HasField("error") else None,
        progress=message.progress,
        waiting_because=_WAITING.get(message.waiting_because),
        cancel_requested=message.cancel_requested,
        traceparent=message.traceparent,
        attempts=tuple(_attempt(attempt) for attempt in message.attempts),
    )


def _attempt(message: job_pb2.Attempt) -> JobAttempt:
    return JobAttempt(
        attempt=message.attempt,
        claim=message.claim,
        worker=message.worker,
        started_at=instant_from_proto(message.started_at) if message.HasField("started_at") else None,
        ended_at=instant_from_proto(message.ended_at) if message.HasField("ended_at") else None,
        outcome=_OUTCOMES.get(message.outcome),
        error=_error(message.error) if message.HasField("error") else None,
    )


def _error(message: job_pb2.JobError) -> JobError:
    return JobError(type=message.type, message=message.message)
