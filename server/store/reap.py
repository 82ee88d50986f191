"""What the owner of a shard looks after: running rows, lost workers, timeouts, expired jobs, parked jobs, old keys.

Reads page by key and carry no fence; whatever changes a row does.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from server.domain.due import DueJob
from server.domain.ending import RunningJob
from server.domain.job import AttemptRef
from server.store.arrays import ByteaArray, Int4Array, Int8Array, TextArray
from server.store.database import Database, Row, Statement
from server.store.fence import FENCE
from server.store.finish import facts_of
from server.store.partitions import run_history

PAGE: Final = 500
# Concurrency keys that one sweep for parked jobs looks at.
PARKED_PAGE: Final = 1000

ParkedKey: TypeAlias = tuple[int, int, str]
# Expired jobs whose payloads are moved to the history by one statement: more might not be done in its time, ever.
MAX_EXPIRE_BYTES: Final = 16 << 20


_RUNNING_COLUMNS: Final = (
    "j.shard, j.handler_id, j.worker_id, j.claim_epoch, j.timeout_at, j.timeout_at <= now(), "
    "j.namespace_id, j.concurrency_key, "
    "j.id, j.open_claim, j.handler_id, j.attempt, j.max_attempts, j.retry_initial_ms, j.retry_multiplier, "
    "j.retry_max_ms, "
    "j.non_retryable, j.deadline_at, j.cancel_requested"
)

RUNNING: Final = Statement(
    "SELECT " + _RUNNING_COLUMNS + " FROM {jobs} j WHERE j.state = 1 AND j.shard = %s"
    " AND (j.worker_id, j.id) > (%s::int8, %s::int8) ORDER BY j.worker_id, j.id LIMIT %s::int8"
)

OF_SHARDS: Final = Statement(
    "SELECT r.* FROM unnest(%s::int4[]) AS s(shard) CROSS JOIN LATERAL (SELECT " + _RUNNING_COLUMNS + " FROM {jobs} j"
    " WHERE j.state = 1 AND j.shard = s.shard ORDER BY j.worker_id, j.id LIMIT %s::int8) r"
)

OF_WORKERS: Final = Statement(
    "SELECT r.* FROM unnest(%s::int4[]) AS s(shard) CROSS JOIN unnest(%s::int8[]) AS w(worker_id)"
    " CROSS JOIN LATERAL (SELECT " + _RUNNING_COLUMNS + " FROM {jobs} j"
    " WHERE j.state = 1 AND j.shard = s.shard AND j.worker_id = w.worker_id ORDER BY j.id LIMIT %s::int8) r"
)

OVERDUE: Final = Statement(
    "SELECT r.* FROM unnest(%s::int4[]) AS s(shard) CROSS JOIN LATERAL (SELECT " + _RUNNING_COLUMNS + " FROM {jobs} j"
    " WHERE j.state = 1 AND j.shard = s.shard AND j.timeout_at IS NOT NULL AND j.timeout_at <= now()"
    " ORDER BY j.timeout_at LIMIT %s::int8) r"
)

# A pending job whose time is over: it failed to start in time, or all its time is spent.
EXPIRE: Final = Statement(
    "WITH "
    + FENCE
    + """,
ripe AS MATERIALIZED (
    SELECT j.id, j.bytes FROM me CROSS JOIN LATERAL (
        SELECT x.id, octet_length(x.payload) AS bytes FROM {jobs} x
        WHERE x.state <> 1 AND x.shard = me.shard AND x.expires_at IS NOT NULL AND x.expires_at <= now()
        ORDER BY x.expires_at LIMIT %s::int8 FOR UPDATE SKIP LOCKED) j),
late AS (
    SELECT s.id FROM (
        SELECT r.id, sum(r.bytes) OVER (ORDER BY r.id ROWS UNBOUNDED PRECEDING) - r.bytes AS before FROM ripe r) s
    WHERE s.before < %s::int8),
gone AS (DELETE FROM {jobs} j USING late l WHERE j.id = l.id RETURNING j.*),
kept AS (
    INSERT INTO job_history (id, due_at, created_at, finished_at, started_at, claim, worker_id, schedule_id,
        scheduled_for, deadline_at, retry_initial_ms, retry_max_ms, attempt_timeout_ms, start_timeout_ms,
        total_timeout_ms, retry_multiplier, shard, handler_id, namespace_id, attempt, max_attempts, concurrency_limit,
        state, priority, name, content_type, concurrency_key, labels, traceparent, non_retryable, error_type,
        error_message, payload, progress)
    SELECT g.id, g.due_at, g.created_at, now(), g.started_at, g.claim, g.worker_id, g.schedule_id,
        g.scheduled_for, g.deadline_at, g.retry_initial_ms, g.retry_max_ms, g.attempt_timeout_ms, g.start_timeout_ms,
        g.total_timeout_ms, g.retry_multiplier, g.shard, g.handler_id, g.namespace_id, g.attempt, g.max_attempts,
        g.concurrency_limit, 4, g.priority, g.name, g.content_type, g.concurrency_key, g.labels, g.traceparent,
        g.non_retryable,
        CASE WHEN g.deadline_at <= now() THEN 'total_timeout' ELSE 'start_timeout' END,
        CASE WHEN g.deadline_at <= now() THEN 'the job''s total time is over'
             ELSE 'no worker started the job within its start timeout' END,
        g.payload, g.progress
    FROM gone g RETURNING id, shard)
SELECT me.shard, kept.id FROM me LEFT JOIN kept ON kept.shard = me.shard
"""
)

UNPARK: Final = Statement(
    "WITH "
    + FENCE
    + """,
heads AS (
    SELECT h.id FROM unnest(%s::int4[], %s::int4[], %s::text[], %s::int4[]) AS w(shard, namespace_id, key, n)
    JOIN me ON me.shard = w.shard
    CROSS JOIN LATERAL (
        SELECT x.id FROM {jobs} x
        WHERE x.state = 2 AND x.shard = w.shard AND x.namespace_id = w.namespace_id AND x.concurrency_key = w.key
        ORDER BY x.priority, x.due_at, x.id LIMIT w.n FOR UPDATE SKIP LOCKED) h),
woken AS (
    UPDATE {jobs} j SET state = 0 FROM heads h WHERE j.id = h.id
    RETURNING j.priority, j.due_at, j.id, j.shard, j.handler_id)
SELECT me.shard, woken.* FROM me LEFT JOIN woken ON woken.shard = me.shard
"""
)

# Keys with parked jobs that have room: left over when a finish and a claim crossed, or a note of a finish was lost.
PARKED_WITH_ROOM: Final = Statement("""
WITH RECURSIVE keys AS (
    (SELECT x.shard, x.namespace_id, x.concurrency_key, x.concurrency_limit, 1 AS n FROM {jobs} x
     WHERE x.state = 2 AND (x.shard, x.namespace_id, x.concurrency_key) > (%s::int4, %s::int4, %s::text)
     ORDER BY x.shard, x.namespace_id, x.concurrency_key, x.priority, x.due_at, x.id LIMIT 1)
    UNION ALL
    SELECT m.*, k.n + 1 FROM keys k CROSS JOIN LATERAL (
        SELECT x.shard, x.namespace_id, x.concurrency_key, x.concurrency_limit FROM {jobs} x
        WHERE x.state = 2
          AND (x.shard, x.namespace_id, x.concurrency_key) > (k.shard, k.namespace_id, k.concurrency_key)
        ORDER BY x.shard, x.namespace_id, x.concurrency_key, x.priority, x.due_at, x.id LIMIT 1) m
    WHERE k.n < %s::int8)
SELECT k.shard, k.namespace_id, k.concurrency_key, k.concurrency_limit - r.running
FROM keys k CROSS JOIN LATERAL (
    SELECT count(*)::int4 AS running FROM {jobs} j
    WHERE j.state = 1 AND j.shard = k.shard AND j.namespace_id = k.namespace_id
      AND j.concurrency_key = k.concurrency_key) r
""")

CLEAN_KEYS: Final = Statement(
    "WITH "
    + FENCE
    + """,
old AS (
    SELECT k.* FROM me CROSS JOIN LATERAL (
        SELECT x.shard, x.namespace_id, x.handler_id, x.concurrency_key, x.key, x.job_id FROM {dedupe_keys} x
        WHERE x.shard = me.shard AND x.sweep_at <= now()
        ORDER BY x.sweep_at LIMIT %s::int8 FOR UPDATE SKIP LOCKED) k),
judged AS MATERIALIZED (SELECT o.*, EXISTS (SELECT FROM {jobs} j WHERE j.id = o.job_id) AS live FROM old o),
later AS (
    UPDATE {dedupe_keys} k SET sweep_at = now() + interval '1 hour' FROM judged o
    WHERE o.live AND k.shard = o.shard AND k.namespace_id = o.namespace_id AND k.handler_id = o.handler_id
      AND k.concurrency_key = o.concurrency_key AND k.key = o.key),
gone AS (
    DELETE FROM {dedupe_keys} k USING judged o
    WHERE NOT o.live AND k.shard = o.shard AND k.namespace_id = o.namespace_id AND k.handler_id = o.handler_id
      AND k.concurrency_key = o.concurrency_key AND k.key = o.key
    RETURNING k.shard)
SELECT me.shard, (SELECT count(*) FROM gone) FROM me
"""
)


async def load_running(database: Database, partition: int, shard: int) -> list[RunningJob]:
    """Return all running jobs of a shard."""
    found: list[RunningJob] = []
    # The leases of topics have negative numbers.
    after = (-(1 << 63), 0)
    while True:
        rows = await database.run(RUNNING.on(partition), (shard, *after, PAGE))
        found.extend(_running(row) for row in rows)
        if len(rows) < PAGE:
            return found
        after = (found[-1].worker_id, found[-1].ref.job_id)


async def running_of_shards(database: Database, partition: int, shards: Sequence[int]) -> dict[int, list[RunningJob]]:
    """Return all running jobs of each of the shards."""
    found: dict[int, list[RunningJob]] = {shard: [] for shard in shards}
    for row in await database.run(OF_SHARDS.on(partition), (Int4Array(shards), PAGE)):
        job = _running(row)
        found[job.shard].append(job)
    for shard, jobs in found.items():
        if len(jobs) >= PAGE:
            found[shard] = await load_running(database, partition, shard)
    return found


async def running_of_workers(
    database: Database, partition: int, shards: Sequence[int], workers: Sequence[int]
) -> list[RunningJob]:
    """Return running jobs of these workers, a page per shard and worker."""
    params = (Int4Array(shards), Int8Array(workers), PAGE)
    return [_running(row) for row in await database.run(OF_WORKERS.on(partition), params)]


async def overdue(database: Database, partition: int, shards: Sequence[int]) -> list[RunningJob]:
    """Return running jobs over their time, or with a cancel that was asked for, a page per shard."""
    return [_running(row) for row in await database.run(OVERDUE.on(partition), (Int4Array(shards), PAGE))]


async def expire(
    database: Database, partition: int, epochs: Sequence[tuple[int, int]]
) -> tuple[list[int], frozenset[int]]:
    """Fail pending jobs whose time is over; return their ids, and the shards that still were ours."""
    rows = await run_history(database, EXPIRE.on(partition), (*_fence_params(epochs), PAGE, MAX_EXPIRE_BYTES))
    return [job_id for _, job_id in rows if job_id is not None], frozenset(shard for shard, _ in rows)


async def unpark(
    database: Database, partition: int, epochs: Sequence[tuple[int, int]], keys: Sequence[tuple[int, int, str, int]]
) -> tuple[list[DueJob], frozenset[int]]:
    """Make parked jobs claimable again; `keys` are (shard, namespace_id, key, how many)."""
    params = (
        *_fence_params(epochs),
        Int4Array([shard for shard, _, _, _ in keys]),
        Int4Array([namespace for _, namespace, _, _ in keys]),
        TextArray([key for _, _, key, _ in keys]),
        Int4Array([count for _, _, _, count in keys]),
    )
    rows = await database.run(UNPARK.on(partition), params)
    woken = [DueJob(*row[1:]) for row in rows if row[1] is not None]
    return woken, frozenset(row[0] for row in rows)


async def parked_with_room(
    database: Database, partition: int, after: ParkedKey | None = None
) -> tuple[list[tuple[int, int, str, int]], ParkedKey | None]:
    """Look at a page of the keys that have parked jobs, from `after` on.

    Return (shard, namespace_id, key, room) of those with room to run some, and the key after which the next page
    begins, None at the end.
    """
    start = after or (-1, -1, "")
    rows = await database.run(PARKED_WITH_ROOM.on(partition), (*start, PARKED_PAGE))
    last = max((row[0], row[1], row[2]) for row in rows) if len(rows) >= PARKED_PAGE else None
    return [(row[0], row[1], row[2], row[3]) for row in rows if row[3] > 0], last


async def clean_keys(database: Database, partition: int, epochs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Remove dedupe keys whose time is over and whose job is gone; return the shards that still were ours."""
    rows = await database.run(CLEAN_KEYS.on(partition), (*_fence_params(epochs), PAGE))
    return frozenset(row[0] for row in rows)


def _fence_params(epochs: Sequence[tuple[int, int]]) -> tuple[object, ...]:
    return Int4Array([shard for shard, _ in epochs]), Int8Array([epoch for _, epoch in epochs])


def _running(row: Row) -> RunningJob:
    shard, handler_id, worker_id, claim_epoch, timeout_at, is_overdue, namespace_id, key, *facts = row
    return RunningJob(
        facts=facts_of(facts),
        shard=shard,
        handler_id=handler_id,
        worker_id=worker_id,
        claim_epoch=claim_epoch,
        timeout_at=timeout_at,
        overdue=bool(is_overdue),
        key=None if key is None else (namespace_id, key),
    )


ATTENTION: Final = Statement("""
SELECT
    EXISTS (SELECT FROM unnest(%s::int4[]) AS s(shard) CROSS JOIN LATERAL (
        SELECT FROM {jobs} x WHERE x.state <> 1 AND x.shard = s.shard AND x.expires_at IS NOT NULL
            AND x.expires_at <= now() ORDER BY x.expires_at LIMIT 1) e),
    EXISTS (SELECT FROM unnest(%s::int4[]) AS s(shard) CROSS JOIN LATERAL (
        SELECT FROM {jobs} x WHERE x.state = 1 AND x.shard = s.shard AND x.timeout_at IS NOT NULL
            AND x.timeout_at <= now() ORDER BY x.timeout_at LIMIT 1) o),
    EXISTS (SELECT FROM {jobs} x WHERE x.state = 2)
""")

SAVE_PROGRESS: Final = Statement("""
WITH locked AS (
    SELECT j.id, w.data FROM unnest(%s::int8[], %s::int8[], %s::bytea[]) AS w(id, claim, data)
    JOIN {jobs} j ON j.id = w.id AND j.open_claim = w.claim AND j.worker_id = %s::int8
    ORDER BY j.id FOR UPDATE OF j)
UPDATE {jobs} j SET progress = l.data FROM locked l WHERE j.id = l.id
""")


async def attention(database: Database, partition: int, shards: Sequence[int]) -> tuple[bool, bool, bool]:
    """Return whether there are expired pending jobs, overdue running ones, parked ones."""
    array = Int4Array(shards)
    [row] = await database.run(ATTENTION.on(partition), (array, array))
    return row[0], row[1], row[2]


async def save_progress(
    database: Database, partition: int, worker_id: int, progress: Sequence[tuple[AttemptRef, bytes]]
) -> None:
    """Keep the progress of attempts of a worker that are still open; those of others are left out."""
    params = (
        Int8Array([ref.job_id for ref, _ in progress]),
        Int8Array([ref.claim for ref, _ in progress]),
        ByteaArray([data for _, data in progress]),
        worker_id,
    )
    await database.run(SAVE_PROGRESS.on(partition), params)
