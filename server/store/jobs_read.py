"""Reading a job, live or finished, with its attempts and with what explains why it waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from psycopg.rows import tuple_row

from server.domain.job import AttemptOutcome, Backoff, JobState, TimeLimits
from server.store.arrays import Int8Array
from server.store.database import Connection, Database, Row, Statement

MAX_ATTEMPTS_SHOWN: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job, live or finished, as it is shown. `open_claim` is that of a live attempt."""

    job_id: int
    namespace_id: int
    handler_id: int
    state: JobState
    name: str
    priority: int
    due_at: datetime
    content_type: str
    attempt: int
    claim: int
    worker_id: int | None
    backoff: Backoff
    limits: TimeLimits
    deadline_at: datetime | None
    concurrency_key: str | None
    concurrency_limit: int
    labels: bytes | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    schedule_id: int | None
    scheduled_for: datetime | None
    error_type: str | None
    error_message: str | None
    traceparent: str | None
    progress: bytes | None
    result_content_type: str | None
    open_claim: int | None
    cancel_requested: bool
    worker: str
    payload: bytes = b""
    result: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job with what explains why it waits; `now` is the database clock."""

    job: JobRecord
    now: datetime
    shard_owned: bool
    handler_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One unsuccessful attempt."""

    attempt: int
    claim: int
    worker: str
    started_at: datetime | None
    ended_at: datetime
    outcome: AttemptOutcome
    error_type: str
    error_message: str


COMMON_COLUMNS: Final[LiteralString] = """x.id, x.namespace_id, x.handler_id, x.state, x.name, x.priority, x.due_at,
    x.content_type, x.attempt, x.claim, x.worker_id, x.max_attempts, x.retry_initial_ms, x.retry_multiplier,
    x.retry_max_ms, x.non_retryable, x.start_timeout_ms, x.attempt_timeout_ms, x.total_timeout_ms, x.deadline_at,
    x.concurrency_key, x.concurrency_limit, x.labels, x.created_at, x.started_at, x.schedule_id, x.scheduled_for,
    x.error_type, x.error_message, x.traceparent, x.progress"""
LIVE_COLUMNS: Final[LiteralString] = (
    COMMON_COLUMNS
    + ", NULL::timestamptz AS finished_at, NULL::text AS result_content_type, x.open_claim, x.cancel_requested"
)
FINISHED_COLUMNS: Final[LiteralString] = (
    COMMON_COLUMNS + ", x.finished_at, x.result_content_type, NULL::bigint AS open_claim, false AS cancel_requested"
)
# A job that was published is held by the lease of its handler's topic.
WORKER_NAME: Final[LiteralString] = (
    "COALESCE((SELECT k.name FROM workers k WHERE k.id = x.worker_id),"
    " (SELECT 'kafka:' || h.name FROM handlers h WHERE h.id = -x.worker_id), '') AS worker"
)

_READ_LIVE: Final[LiteralString] = (
    "SELECT "
    + LIVE_COLUMNS
    + ", "
    + WORKER_NAME
    + """, x.payload, NULL::bytea AS result, now(), s.owner IS NOT NULL, h.paused
    FROM {jobs} x JOIN shards s ON s.shard = x.shard JOIN handlers h ON h.id = x.handler_id
    WHERE x.id = %s::int8 AND x.namespace_id = %s::int4"""
)
_READ_FINISHED: Final[LiteralString] = (
    "SELECT "
    + FINISHED_COLUMNS
    + ", "
    + WORKER_NAME
    + """, x.payload, x.result, now(), true, false
    FROM job_history x WHERE x.id = %s::int8 AND x.namespace_id = %s::int4"""
)
READ_LIVE: Final = Statement(_READ_LIVE)
# Both in one snapshot: a job that moves between the two is always found in one of them.
READ_ANYWHERE: Final = Statement(_READ_LIVE + " UNION ALL " + _READ_FINISHED)

READ_ATTEMPTS: Final = """
SELECT a.attempt, a.claim, COALESCE((SELECT k.name FROM workers k WHERE k.id = a.worker_id), ''), a.started_at,
    a.ended_at, a.outcome, a.error_type, a.error_message
FROM attempts a WHERE a.job_id = %s::int8 ORDER BY a.claim DESC LIMIT %s::int8
"""

GONE: Final = """
SELECT u.id FROM unnest(%s::int8[]) AS u(id)
WHERE NOT EXISTS (SELECT FROM jobs x WHERE x.id = u.id AND x.shard = (u.id & 4095)::int4)
"""

# A commit whose wait for the standby was broken off, by a time-out or a restart, shows before the standby has it. The
# standby has it as soon as it has a later one: this one's, which waits.
SEAL: Final = "SELECT pg_logical_emit_message(true, 'shardwheel', '')"

_TIMES: Final[LiteralString] = """
SELECT x.id, x.due_at, x.created_at FROM unnest(%s::int8[]) AS u(id)
JOIN <table> x ON x.id = u.id AND x.shard = (u.id & 4095)::int4
"""
TIMES: Final = _TIMES.replace("<table>", "jobs") + "UNION ALL" + _TIMES.replace("<table>", "job_history")


async def read_job(database: Database, partition: int, namespace_id: int, job_id: int) -> JobView | None:
    """Return a job, live or finished; None if the namespace has no such job."""
    rows = await database.run(READ_LIVE.on(partition), (job_id, namespace_id), api=True)
    if not rows:
        statement = READ_ANYWHERE.on(partition)
        rows = await database.run(statement, (job_id, namespace_id, job_id, namespace_id), api=True)
    if not rows:
        return None
    *columns, payload, result, now, owned, paused = rows[0]
    job = record(columns, payload, result)
    return JobView(job=job, now=now, shard_owned=owned, handler_paused=paused)


async def read_attempts(database: Database, job_id: int) -> list[AttemptRecord]:
    """Return the latest unsuccessful attempts of a job, the oldest first."""
    rows = await database.run(READ_ATTEMPTS, (job_id, MAX_ATTEMPTS_SHOWN), api=True)
    return [_attempt(row) for row in reversed(rows)]


async def gone(database: Database, job_ids: Sequence[int]) -> set[int]:
    """Return those jobs that are not live (any more)."""
    return {job_id for (job_id,) in await database.run(GONE, (Int8Array(job_ids),), api=True)}


async def stored_times(database: Database, job_ids: Sequence[int]) -> dict[int, tuple[datetime, datetime]]:
    """Return the due and creation times of those jobs that are stored for good, live or finished."""
    ids = Int8Array(job_ids)

    async def work(connection: Connection) -> list[Row]:
        cursor = connection.cursor(row_factory=tuple_row, binary=True)
        await cursor.execute(TIMES, (ids, ids))
        rows = await cursor.fetchall()
        if rows:
            await cursor.execute(SEAL)
        return rows

    rows = await database.transact(work)
    return {job_id: (due_at, created_at) for job_id, due_at, created_at in rows}


def record(row: Sequence[Row], payload: bytes = b"", result: bytes | None = None) -> JobRecord:
    (job_id, namespace_id, handler_id, state, name, priority, due_at, content_type, attempt, claim, worker_id,
     max_attempts, initial_ms, multiplier, max_ms, non_retryable, start_ms, attempt_ms, total_ms, deadline_at,
     concurrency_key, concurrency_limit, labels, created_at, started_at, schedule_id, scheduled_for, error_type,
     error_message, traceparent, progress, finished_at, result_content_type, open_claim, cancel_requested,
     worker) = row  # fmt: skip
    return JobRecord(
        job_id=job_id,
        namespace_id=namespace_id,
        handler_id=handler_id,
        state=JobState(state),
        name=name,
        priority=priority,
        due_at=due_at,
        content_type=content_type,
        attempt=attempt,
        claim=claim,
        worker_id=worker_id,
        backoff=Backoff(
            max_attempts=max_attempts,
            initial=timedelta(milliseconds=initial_ms),
            multiplier=multiplier,
            maximum=timedelta(milliseconds=max_ms),
            non_retryable=tuple(non_retryable or ()),
        ),
        limits=TimeLimits(start=_span(start_ms), attempt=_span(attempt_ms), total=_span(total_ms)),
        deadline_at=deadline_at,
        concurrency_key=concurrency_key,
        concurrency_limit=concurrency_limit,
        labels=labels,
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at,
        schedule_id=schedule_id,
        scheduled_for=scheduled_for,
        error_type=error_type,
        error_message=error_message,
        traceparent=traceparent,
        progress=progress,
        result_content_type=result_content_type,
        open_claim=open_claim,
        cancel_requested=cancel_requested,
        worker=worker,
        payload=payload,
        result=result,
    )


def _span(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _attempt(row: Row) -> AttemptRecord:
    attempt, claim, worker, started_at, ended_at, outcome, error_type, error_message = row
    return AttemptRecord(
        attempt=attempt,
        claim=claim,
        worker=worker,
        started_at=started_at,
        ended_at=ended_at,
        outcome=AttemptOutcome(outcome),
        error_type=error_type,
        error_message=error_message,
    )
