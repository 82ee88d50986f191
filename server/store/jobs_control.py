"""What people do to a job: cancel it, have it tried again.

Each is one statement that locks the row, looks at its state and acts on it, so that it cannot cross a claim, a finish
or another such request: it happens before or after, never in between. A job that was published and that no consumer has
started counts as pending. Once `target` has the lock, the row is found by
its id alone: other columns would be compared as they were when the statement began.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from server.domain.due import DueJob
from server.domain.job import AttemptRef, JobState
from server.store.database import Database, Statement
from server.store.partitions import run_history

CANCEL: Final = Statement("""
WITH target AS (
    SELECT x.id, CASE WHEN x.worker_id < 0 AND x.state = 1 THEN 0 ELSE x.state END AS state, x.concurrency_key,
        CASE WHEN x.worker_id < 0 THEN x.open_claim END AS published
    FROM {jobs} x WHERE x.id = %s::int8 AND x.namespace_id = %s::int4 FOR UPDATE),
flagged AS (
    UPDATE {jobs} j
    SET cancel_requested = true, timeout_at = LEAST(j.timeout_at, now()), error_type = 'cancelled', error_message = %s
    FROM target t WHERE t.state = 1 AND j.id = t.id
    RETURNING j.open_claim, j.worker_id),
gone AS (DELETE FROM {jobs} j USING target t WHERE t.state <> 1 AND j.id = t.id RETURNING j.*),
kept AS (
    INSERT INTO job_history (state, finished_at, error_type, error_message, id, due_at, created_at, started_at, claim,
        worker_id, schedule_id, scheduled_for, deadline_at, retry_initial_ms, retry_max_ms, attempt_timeout_ms,
        start_timeout_ms, total_timeout_ms, retry_multiplier, shard, handler_id, namespace_id, attempt, max_attempts,
        concurrency_limit, priority, name, content_type, concurrency_key, labels, traceparent, non_retryable, payload,
        progress)
    SELECT 5, now(), 'cancelled', %s, g.id, g.due_at, g.created_at,
        CASE WHEN t.published IS NULL THEN g.started_at END, g.claim,
        CASE WHEN t.published IS NULL THEN g.worker_id END,
        g.schedule_id, g.scheduled_for, g.deadline_at, g.retry_initial_ms, g.retry_max_ms,
        g.attempt_timeout_ms, g.start_timeout_ms, g.total_timeout_ms, g.retry_multiplier, g.shard, g.handler_id,
        g.namespace_id, g.attempt, g.max_attempts, g.concurrency_limit, g.priority, g.name, g.content_type,
        g.concurrency_key, g.labels, g.traceparent, g.non_retryable, g.payload, g.progress
    FROM gone g JOIN target t ON t.id = g.id RETURNING id)
SELECT t.state, t.concurrency_key, t.published, f.open_claim, f.worker_id FROM target t LEFT JOIN flagged f ON true
""")

# A pending job that waits for its next try becomes due at once. `due` says whether it is due already.
HURRY: Final = Statement("""
WITH target AS (
    SELECT x.id, x.state, x.claim, x.due_at <= now() AS due FROM {jobs} x
    WHERE x.id = %s::int8 AND x.namespace_id = %s::int4 FOR UPDATE),
hurried AS (
    UPDATE {jobs} j SET due_at = now() FROM target t WHERE t.state = 0 AND t.claim > 0 AND NOT t.due AND j.id = t.id
    RETURNING j.priority, j.due_at, j.id, j.shard, j.handler_id)
SELECT t.state, t.due, h.* FROM target t LEFT JOIN hurried h ON true
""")

# Back from the history with the same id: the claim is kept, so that claims never repeat; the tries start anew.
REVIVE: Final = Statement("""
WITH gone AS (
    DELETE FROM job_history h WHERE h.id = %s::int8 AND h.namespace_id = %s::int4 AND h.state IN (4, 5)
    RETURNING h.*)
INSERT INTO {jobs} (id, shard, namespace_id, handler_id, due_at, deadline_at, expires_at, created_at, claim, priority,
    payload, content_type, name, max_attempts, retry_initial_ms, retry_multiplier, retry_max_ms, non_retryable,
    start_timeout_ms, attempt_timeout_ms, total_timeout_ms, concurrency_key, concurrency_limit, labels, traceparent,
    schedule_id, scheduled_for, progress)
SELECT g.id, g.shard, g.namespace_id, g.handler_id, now(), now() + g.total_timeout_ms * interval '1 millisecond',
    LEAST(now() + g.start_timeout_ms * interval '1 millisecond', now() + g.total_timeout_ms * interval '1 millisecond'),
    g.created_at, g.claim, g.priority, g.payload, g.content_type, g.name, g.max_attempts, g.retry_initial_ms,
    g.retry_multiplier, g.retry_max_ms, g.non_retryable, g.start_timeout_ms, g.attempt_timeout_ms, g.total_timeout_ms,
    g.concurrency_key, g.concurrency_limit, g.labels, g.traceparent, g.schedule_id, g.scheduled_for, g.progress
FROM gone g
RETURNING priority, due_at, id, shard, handler_id
""")

FINAL_STATE: Final = "SELECT state FROM job_history WHERE id = %s::int8 AND namespace_id = %s::int4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What a cancel did: `was` is the state before; `running` the attempt to be stopped, with its worker.

    `room` is the concurrency key under which there is room for another job, for this one will not take it up.
    """

    was: JobState
    running: tuple[AttemptRef, int] | None = None
    room: str | None = None
    published: AttemptRef | None = None
    """The attempt that waited in its handler's topic, if the job did."""


class RetryVerdict(Enum):
    """What a request to try again met."""

    DUE = "due"
    """The job is due now, or was already."""
    RUNNING = "running"
    COMPLETED = "completed"
    NOT_TRIED = "not tried"
    """It waits for its first due time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What a request to try again did; `due` is set if the job became due by it."""

    verdict: RetryVerdict
    due: DueJob | None = None


async def cancel(
    database: Database, partition: int, namespace_id: int, job_id: int, reason: str
) -> Cancelled | JobState | None:
    """Cancel a job: a pending one moves to the history, a running one is marked. An empty reason gets a default text.

    Return what was done; the final state if the job was final already; None if there is no such job.
    """
    texts = (reason or "cancelled by a user while it ran", reason or "cancelled by a user before it ran")
    for _ in range(2):
        rows = await run_history(database, CANCEL.on(partition), (job_id, namespace_id, *texts), api=True)
        if rows:
            state, key, published, claim, worker_id = rows[0]
            running = (AttemptRef(job_id, claim), worker_id) if claim is not None else None
            return Cancelled(
                was=JobState(state),
                running=running,
                room=key if state == JobState.PENDING else None,
                published=None if published is None else AttemptRef(job_id, published),
            )
        final = await _final_state(database, namespace_id, job_id)
        if final is not None:
            return final
        # In neither: there is no such job, unless it came back from the history between the two statements.
    return None


async def retry(database: Database, partition: int, namespace_id: int, job_id: int) -> Retried | None:
    """Have a failed, cancelled or backing-off job tried now; None if there is no such job."""
    rows = await database.run(HURRY.on(partition), (job_id, namespace_id), api=True)
    if not rows:
        revived = await database.run(REVIVE.on(partition), (job_id, namespace_id), api=True)
        if revived:
            return Retried(verdict=RetryVerdict.DUE, due=DueJob(*revived[0]))
        state = await _final_state(database, namespace_id, job_id)
        if state is JobState.COMPLETED:
            return Retried(verdict=RetryVerdict.COMPLETED)
        # A job that came back between the statements was made due by whoever brought it back.
        rows = await database.run(HURRY.on(partition), (job_id, namespace_id), api=True)
        if not rows:
            return None
    state, due, *hurried = rows[0]
    if state == JobState.RUNNING:
        return Retried(verdict=RetryVerdict.RUNNING)
    if hurried[0] is not None:
        return Retried(verdict=RetryVerdict.DUE, due=DueJob(*hurried))
    return Retried(verdict=RetryVerdict.DUE if due else RetryVerdict.NOT_TRIED)


async def _final_state(database: Database, namespace_id: int, job_id: int) -> JobState | None:
    rows = await database.run(FINAL_STATE, (job_id, namespace_id), api=True)
    return JobState(rows[0][0]) if rows else None
