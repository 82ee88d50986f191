"""Starting published jobs: a consumer takes one over from the lease of its handler's topic.

The statement is keyed on (id, open claim), as a finish is, so any node may commit it: what was published again since
then, has ended, or was started by somebody else is left alone. Asked twice by the same worker, it answers the same.
"""

from collections.abc import Sequence
from typing import Final

from server.domain.job import AttemptRef, ClaimedJob
from server.domain.starting import Started
from server.store.arrays import BoolArray, Int8Array
from server.store.database import Database, Row, Statement

# `state + 0`: no partial index fits, so that rows are found by their ids alone. The lease has to run, for from now on
# it is what the attempt is held by.
START: Final = Statement("""
WITH me AS MATERIALIZED (
    SELECT w.id FROM workers w
    WHERE w.namespace_id = %s::int4 AND w.name = %s AND w.incarnation = %s::int8
      AND w.identity IN ('', %s) AND w.ended_at IS NULL AND w.lost_at IS NULL AND w.lease_until > now()),
locked AS (
    SELECT j.id, j.shard, me.id AS worker_id, j.worker_id < 0 AS fresh, w.with_payload
    FROM me CROSS JOIN unnest(%s::int8[], %s::int8[], %s::bool[]) AS w(id, claim, with_payload)
    JOIN {jobs} j ON j.id = w.id AND j.shard = (w.id & 4095)::int4 AND j.open_claim = w.claim
    WHERE j.state + 0 = 1 AND j.namespace_id = %s::int4
      AND (j.worker_id = me.id OR (j.worker_id < 0 AND (j.expires_at IS NULL OR j.expires_at > now())))
    ORDER BY j.id FOR UPDATE OF j),
up AS (
    UPDATE {jobs} j
    SET worker_id = l.worker_id,
        started_at = CASE WHEN l.fresh THEN now() ELSE j.started_at END,
        timeout_at = CASE WHEN l.fresh
            THEN LEAST(now() + j.attempt_timeout_ms * interval '1 millisecond', j.deadline_at) ELSE j.timeout_at END
    FROM locked l WHERE j.id = l.id AND j.shard = l.shard
    RETURNING j.id, j.claim, j.claim_epoch, j.attempt, j.max_attempts, j.namespace_id, j.handler_id, j.worker_id,
        j.priority, j.name, CASE WHEN l.with_payload THEN j.payload ELSE ''::bytea END, j.content_type, j.due_at,
        j.scheduled_for, j.started_at, j.timeout_at, j.progress, j.traceparent, j.labels, j.concurrency_key)
SELECT (SELECT id FROM me), now(), up.* FROM (VALUES (1)) AS one(n) LEFT JOIN up ON true
""")


async def start(
    database: Database,
    namespace_id: int,
    worker: str,
    incarnation: int,
    wanted: Sequence[tuple[AttemptRef, bool]],
    identity: str = "",
) -> Started | None:
    """Start published attempts for a worker; those that are not open any more are left out.

    `wanted` says of each whether its payload is wanted. None if the incarnation, of that identity, holds no lease.
    """
    params = (
        namespace_id,
        worker,
        incarnation,
        identity,
        Int8Array([ref.job_id for ref, _ in wanted]),
        Int8Array([ref.claim for ref, _ in wanted]),
        BoolArray([with_payload for _, with_payload in wanted]),
        namespace_id,
    )
    rows = await database.run(START.on_all(), params)
    if rows[0][0] is None:
        return None
    return Started(rows[0][0], rows[0][1], [_started(row) for row in rows if row[2] is not None])


def _started(row: Row) -> ClaimedJob:
    (_, _, job_id, claim, epoch, attempt, max_attempts, namespace_id, handler_id, worker_id, priority, name, payload,
     content_type, due_at, scheduled_for, started_at, timeout_at, progress, traceparent, labels,
     key) = row  # fmt: skip
    return ClaimedJob(
        job_id=job_id,
        claim=claim,
        epoch=epoch,
        attempt=attempt,
        max_attempts=max_attempts,
        namespace_id=namespace_id,
        handler_id=handler_id,
        worker_id=worker_id,
        priority=priority,
        name=name,
        payload=payload,
        content_type=content_type,
        due_at=due_at,
        scheduled_for=scheduled_for,
        started_at=started_at,
        timeout_at=timeout_at,
        progress=progress,
        traceparent=traceparent,
        labels=labels,
        concurrency_key=key,
    )
