"""Finding what is due and binding it to workers.

`sweep` and `peek` only read: they say what is due when, without a fence, and may be out of date at once. `claim`
decides: one statement per partition re-checks everything under the fence, binds each job to a worker's slot, and never
takes more jobs than it was given slots. Each (shard, handler, priority) is probed as an exact range of the due index,
from a lower bound on, so that neither future rows nor dead entries of rows claimed before are walked.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from server.domain.due import ClaimResult, DueJob, Probe
from server.domain.job import ClaimedJob
from server.store.arrays import InstantArray, Int4Array, Int8Array
from server.store.database import Database, Row, Statement
from server.store.fence import FENCE

# A claim returns at most this many bytes of payload (or one job): a stopped node that is being sent a large result
# would hold its row locks until the connection is cut.
MAX_CLAIM_BYTES: Final = 1 << 20


SWEEP: Final = Statement("""
WITH RECURSIVE seen AS (
    (SELECT x.shard, x.handler_id, x.priority, x.due_at, x.id FROM {jobs} x
     WHERE x.state = 0 ORDER BY x.shard, x.handler_id, x.priority, x.due_at, x.id LIMIT 1)
    UNION ALL
    SELECT n.* FROM seen s CROSS JOIN LATERAL (
        SELECT x.shard, x.handler_id, x.priority, x.due_at, x.id FROM {jobs} x
        WHERE x.state = 0 AND (x.shard, x.handler_id, x.priority) > (s.shard, s.handler_id, s.priority)
        ORDER BY x.shard, x.handler_id, x.priority, x.due_at, x.id LIMIT 1) n)
SELECT priority, due_at, id, shard, handler_id FROM seen
""")

PENDING: Final = Statement(" WHERE EXISTS (SELECT FROM {jobs} x WHERE x.state = 0)")

PEEK: Final = Statement("""
SELECT q.priority, q.due_at, q.id, w.shard, w.handler_id
FROM unnest(%s::int4[], %s::int4[]) WITH ORDINALITY AS w(shard, handler_id, ord)
CROSS JOIN LATERAL (
    SELECT r.* FROM (VALUES (1::int2), (2::int2), (3::int2), (4::int2), (5::int2)) AS p(priority)
    CROSS JOIN LATERAL (
        SELECT x.priority, x.due_at, x.id FROM {jobs} x
        WHERE x.state = 0 AND x.shard = w.shard AND x.handler_id = w.handler_id AND x.priority = p.priority
          AND x.due_at >= (%s::timestamptz[])[(w.ord::int - 1) * 5 + p.priority]
        ORDER BY x.due_at, x.id LIMIT %s::int8) r) q
""")

CLAIM: Final = Statement(
    "WITH "
    + FENCE
    + """,
seek AS MATERIALIZED (
    SELECT w.ord::int AS ord, w.shard, w.handler_id, w.n, w.off, me.epoch
    FROM unnest(%s::int4[], %s::int4[], %s::int4[], %s::int4[]) WITH ORDINALITY AS w(shard, handler_id, n, off, ord)
    JOIN me ON me.shard = w.shard
    JOIN handlers h ON h.id = w.handler_id AND NOT h.paused),
found AS MATERIALIZED (
    SELECT s.ord, s.n, s.off, s.epoch, s.shard, q.*
    FROM seek s CROSS JOIN LATERAL (
        SELECT r.* FROM (VALUES (1::int2), (2::int2), (3::int2), (4::int2), (5::int2)) AS p(priority)
        CROSS JOIN LATERAL (
            SELECT x.id, x.priority, x.due_at, x.namespace_id, x.concurrency_key, x.concurrency_limit,
                   octet_length(x.payload) AS bytes
            FROM {jobs} x
            WHERE x.state = 0 AND x.shard = s.shard AND x.handler_id = s.handler_id AND x.priority = p.priority
              AND x.due_at <= now()
              AND x.due_at >= (%s::timestamptz[])[(s.ord - 1) * 5 + p.priority]
              AND (x.expires_at IS NULL OR x.expires_at > now())
            ORDER BY x.due_at, x.id LIMIT s.n + %s::int8 FOR UPDATE SKIP LOCKED) r
        LIMIT s.n + %s::int8) q),
ranked AS MATERIALIZED (
    SELECT f.*, CASE WHEN f.concurrency_key IS NULL THEN true ELSE
        row_number() OVER (PARTITION BY f.shard, f.namespace_id, f.concurrency_key ORDER BY f.priority, f.due_at, f.id)
        + (SELECT count(*) FROM {jobs} r WHERE r.state = 1 AND r.shard = f.shard AND r.namespace_id = f.namespace_id
           AND r.concurrency_key = f.concurrency_key) <= f.concurrency_limit END AS take
    FROM found f),
numbered AS (
    SELECT r.*, row_number() OVER (PARTITION BY r.ord ORDER BY r.priority, r.due_at, r.id) AS k
    FROM ranked r WHERE r.take),
sized AS (
    SELECT m.id, m.epoch, m.off + m.k AS slot,
           sum(m.bytes) OVER (ORDER BY m.priority, m.due_at, m.id ROWS UNBOUNDED PRECEDING) - m.bytes AS before
    FROM numbered m WHERE m.k <= m.n),
picked AS MATERIALIZED (
    SELECT id, epoch, (%s::int8[])[slot::int] AS worker_id FROM sized WHERE before < %s::int8),
parked AS (UPDATE {jobs} j SET state = 2 FROM ranked r WHERE NOT r.take AND j.id = r.id),
up AS (
    UPDATE {jobs} j
    SET state = 1, claim = j.claim + 1, open_claim = j.claim + 1, attempt = j.attempt + 1, claim_epoch = p.epoch,
        worker_id = p.worker_id, started_at = now(), cancel_requested = false,
        timeout_at = CASE WHEN p.worker_id > 0
            THEN LEAST(now() + j.attempt_timeout_ms * interval '1 millisecond', j.deadline_at)
            ELSE (SELECT LEAST(now() + h.queue_timeout_ms * interval '1 millisecond', j.expires_at)
                  FROM handlers h WHERE h.id = j.handler_id) END
    FROM picked p WHERE j.id = p.id
    RETURNING j.id, j.claim, p.epoch, j.attempt, j.max_attempts, j.namespace_id, j.handler_id, j.worker_id, j.priority,
        j.name, j.payload, j.content_type, j.due_at, j.scheduled_for, j.started_at, j.timeout_at, j.progress,
        j.traceparent, j.labels, j.concurrency_key, j.shard)
SELECT me.shard, now(), (SELECT count(*) FROM ranked WHERE NOT take), up.* FROM me LEFT JOIN up ON up.shard = me.shard
"""
)


async def sweep(database: Database, partition: int) -> list[DueJob]:
    """Return the earliest pending job of every (shard, handler, priority) of a partition."""
    return [DueJob(*row) for row in await database.run(SWEEP.on(partition))]


async def pending_partitions(database: Database, partitions: Sequence[int]) -> list[int]:
    """Return those of the partitions that have pending jobs, due or not."""
    looks = [b"SELECT %d" % partition + PENDING.on(partition) for partition in partitions]
    return [row[0] for row in await database.run(b" UNION ALL ".join(looks))]


async def peek(
    database: Database, partition: int, pairs: Sequence[tuple[int, int, Sequence[datetime]]], limit: int
) -> list[DueJob]:
    """Return up to `limit` pending jobs per priority of each (shard, handler, bounds), the earliest first."""
    rows = await database.run(
        PEEK.on(partition),
        (
            Int4Array([shard for shard, _, _ in pairs]),
            Int4Array([handler for _, handler, _ in pairs]),
            InstantArray([bound for _, _, bounds in pairs for bound in bounds]),
            limit,
        ),
    )
    return [DueJob(*row) for row in rows]


async def claim(
    database: Database,
    partition: int,
    epochs: Sequence[tuple[int, int]],
    probes: Sequence[Probe],
    *,
    look_past: int = 0,
) -> ClaimResult:
    """Claim due jobs for the given slots; `epochs` are (shard, epoch) of every shard that a probe names.

    A job that is bound to the lease of its handler's topic has as its time that in which a consumer has to start it.

    Each probe looks at `look_past` more jobs than it has slots, to park a crowd behind full concurrency keys quickly.
    """
    offsets: list[int] = []
    workers: list[int] = []
    for probe in probes:
        offsets.append(len(workers))
        workers.extend(probe.workers)
    rows = await database.run(
        CLAIM.on(partition),
        (
            Int4Array([shard for shard, _ in epochs]),
            Int8Array([epoch for _, epoch in epochs]),
            Int4Array([probe.shard for probe in probes]),
            Int4Array([probe.handler_id for probe in probes]),
            Int4Array([len(probe.workers) for probe in probes]),
            Int4Array(offsets),
            InstantArray([bound for probe in probes for bound in probe.bounds]),
            look_past,
            look_past,
            Int8Array(workers),
            MAX_CLAIM_BYTES,
        ),
    )
    return ClaimResult(
        jobs=[_claimed(row) for row in rows if row[3] is not None],
        live_shards=frozenset(row[0] for row in rows),
        now=rows[0][1] if rows else None,
        parked=rows[0][2] if rows else 0,
    )


def _claimed(row: Row) -> ClaimedJob:
    (_, _, _, job_id, claim_number, epoch, attempt, max_attempts, namespace_id, handler_id, worker_id, priority, name,
     payload, content_type, due_at, scheduled_for, started_at, timeout_at, progress, traceparent, labels, key,
     _) = row  # fmt: skip
    return ClaimedJob(
        job_id=job_id,
        claim=claim_number,
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
