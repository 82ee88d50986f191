"""Jobs as people and programs see them."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from shard_manager.shardctl.layout import Block, Column, Details, Line, Table
from shard_manager.shardctl.message_json import bytes_to_json, message_to_json
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.times import format_duration, format_second
from shardwheel.v1.job_pb2 import Attempt, Job, JobError, RetryPolicy, Timeouts

FINAL_STATES = frozenset({Job.COMPLETED, Job.FAILED, Job.CANCELLED})
# What ListJobs leaves out: shown empty, it would be read as "there is none".
_LEFT_OUT_OF_LISTS = frozenset({"payload", "result", "attempts", "waiting_because"})
_SHOWN_CHARS = 4096


def job_json(job: Job) -> dict[str, Json]:
    """The whole job."""
    return message_to_json(job)


def listed_job_json(job: Job) -> dict[str, Json]:
    """The job as ListJobs knows it."""
    return message_to_json(job, without=_LEFT_OUT_OF_LISTS)


def state_name(state: Job.State.ValueType) -> str:
    """The state in words, empty if there is none."""
    return "" if state == Job.STATE_UNSPECIFIED else Job.State.Name(state).lower()


def instant_text(message: Message, field: str) -> str:
    """The instant in a field, to the second; empty if it is not set."""
    if not message.HasField(field):
        return ""
    value = getattr(message, field)
    assert isinstance(value, Timestamp)
    return format_second(value.ToDatetime(tzinfo=UTC))


def jobs_table(jobs: Iterable[Job]) -> Table:
    """One line per job."""
    columns = (
        Column("ID"),
        Column("HANDLER", minimum=10),
        Column("STATE", state=True),
        Column("TRY", right=True),
        Column("DUE"),
        Column("NAME / ERROR", minimum=8),
    )
    rows = [
        (
            str(job.id),
            job.handler,
            state_name(job.state),
            f"{job.attempt}/{job.retry.max_attempts}" if job.retry.max_attempts else str(job.attempt),
            instant_text(job, "due_at"),
            _error_text(job.error) if job.HasField("error") else job.name,
        )
        for job in jobs
    ]
    return Table(columns, rows, empty="no jobs")


def job_blocks(job: Job, now: datetime) -> Iterator[Block]:
    """Everything about a job: details, what it was given and gave back, its failed attempts."""
    yield Details(_pairs(job, now))
    if job.payload:
        yield _data("Payload", job.payload, job.content_type)
    if job.result:
        yield _data("Result", job.result, job.result_content_type)
    if job.progress:
        yield _data("Progress", job.progress, "")
    if job.attempts:
        yield _attempts_table(job)


def _pairs(job: Job, now: datetime) -> list[tuple[str, str]]:
    key = f"{job.concurrency_key} (at most {job.concurrency_limit or 1})" if job.concurrency_key else ""
    return [
        ("id", str(job.id)),
        ("namespace", job.namespace),
        ("name", job.name),
        ("handler", job.handler),
        ("state", state_name(job.state)),
        ("waits because", _waiting_text(job)),
        ("cancel", "requested; the worker has been told" if job.cancel_requested else ""),
        ("error", _error_text(job.error) if job.HasField("error") else ""),
        ("due", _due_text(job, now)),
        ("started", instant_text(job, "started_at")),
        ("finished", instant_text(job, "finished_at")),
        ("deadline", instant_text(job, "deadline_at")),
        ("created", instant_text(job, "created_at")),
        ("attempt", f"{job.attempt} of {job.retry.max_attempts}" if job.retry.max_attempts else str(job.attempt)),
        ("worker", job.worker),
        ("priority", str(job.priority)),
        ("key", key),
        ("labels", " ".join(f"{name}={value}" for name, value in sorted(job.labels.items()))),
        ("retry", retry_text(job.retry)),
        ("timeouts", timeouts_text(job.timeouts)),
        ("schedule", f"{job.schedule_id}, firing of {instant_text(job, 'scheduled_for')}" if job.schedule_id else ""),
    ]


def retry_text(retry: RetryPolicy) -> str:
    """The policy in a few words; empty if nothing of it is set."""
    words = []
    if retry.max_attempts:
        words.append(f"{retry.max_attempts} attempt{'s' if retry.max_attempts > 1 else ''}")
    if retry.HasField("initial_delay"):
        words.append(f"delays from {format_duration(retry.initial_delay.ToTimedelta())}")
    if retry.multiplier:
        words.append(f"times {retry.multiplier:g}")
    if retry.HasField("max_delay"):
        words.append(f"up to {format_duration(retry.max_delay.ToTimedelta())}")
    if retry.non_retryable_error_types:
        words.append(f"not after {', '.join(retry.non_retryable_error_types)}")
    return ", ".join(words)


def timeouts_text(timeouts: Timeouts) -> str:
    """The limits that are set, in a few words."""
    limits = (
        ("start", timeouts.HasField("start_timeout"), timeouts.start_timeout),
        ("attempt", timeouts.HasField("attempt_timeout"), timeouts.attempt_timeout),
        ("total", timeouts.HasField("total_timeout"), timeouts.total_timeout),
    )
    return ", ".join(f"{name} {format_duration(limit.ToTimedelta())}" for name, is_set, limit in limits if is_set)


def data_text(data: bytes) -> str:
    """Bytes for people: their text, or what they are if they are none; long ones are cut."""
    text = bytes_to_json(data)
    if not isinstance(text, str):
        return f"{len(data)} bytes that are no text; -o json shows them in base64"
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}\n… {len(text)} characters in all; -o json shows them"


def _data(title: str, data: bytes, content_type: str) -> Block:
    return Line(f"{title}{f' ({content_type})' if content_type else ''}:\n{data_text(data)}")


def _waiting_text(job: Job) -> str:
    if job.waiting_because == Job.WAITING_REASON_UNSPECIFIED:
        return ""
    return Job.WaitingReason.Name(job.waiting_because).lower().replace("_", " ")


def _error_text(error: JobError) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type


def _due_text(job: Job, now: datetime) -> str:
    text = instant_text(job, "due_at")
    if job.state != Job.PENDING or not text:
        return text
    left = timedelta(seconds=int((job.due_at.ToDatetime(tzinfo=UTC) - now).total_seconds()))
    return f"{text} (in {format_duration(left)})" if left > timedelta() else text


def _attempts_table(job: Job) -> Table:
    columns = (
        Column("TRY", right=True),
        Column("OUTCOME"),
        Column("STARTED"),
        Column("WORKER", minimum=8),
        Column("ERROR", minimum=10),
    )
    rows = [
        (
            str(attempt.attempt),
            Attempt.Outcome.Name(attempt.outcome).lower().replace("_", " "),
            instant_text(attempt, "started_at"),
            attempt.worker,
            _error_text(attempt.error),
        )
        for attempt in job.attempts
    ]
    return Table(columns, rows)
