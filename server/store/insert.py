"""Storing jobs.

A group of jobs is stored in one transaction. Its statements name the partition if all jobs go to one; else they go
through the parent tables, for a statement per partition costs more than the detour. Jobs with a dedupe key first take
their key; a key that is held by a live job, or whose time has not run out, leads to that job instead. Keys are taken in
a fixed order, so that groups cannot deadlock.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from server.domain.job import NewJob, Submitted
from server.domain.sharding import shard_of_id
from server.store.arrays import (
    ByteaArray,
    Float8Array,
    InstantArray,
    Int2Array,
    Int4Array,
    Int8Array,
    JsonbArray,
    TextArray,
)
from server.store.database import Connection, Database, Statement

# A key outlives its submit by this much at least: a client whose answer was lost finds its job, finished or not.
MIN_KEY_LIFE: Final = timedelta(minutes=10)

# non_retryable travels as text joined by line feeds: arrays of arrays would all need the same length.
INSERT: Final = Statement("""
INSERT INTO {jobs} (id, shard, namespace_id, handler_id, due_at, deadline_at, expires_at, priority, payload,
    content_type, name, max_attempts, retry_initial_ms, retry_multiplier, retry_max_ms, non_retryable,
    start_timeout_ms, attempt_timeout_ms, total_timeout_ms, concurrency_key, concurrency_limit, labels, traceparent,
    schedule_id, scheduled_for)
SELECT w.id, (w.id & 4095)::int4, w.namespace_id, w.handler_id, d.due_at,
    d.due_at + w.total_ms * interval '1 millisecond',
    LEAST(d.due_at + w.start_ms * interval '1 millisecond', d.due_at + w.total_ms * interval '1 millisecond'),
    w.priority, w.payload, w.content_type, w.name, w.max_attempts, w.initial_ms, w.multiplier, w.max_ms,
    string_to_array(w.non_retryable, E'\\n'), w.start_ms, w.attempt_ms, w.total_ms, w.concurrency_key,
    w.concurrency_limit, w.labels, w.traceparent, w.schedule_id, w.scheduled_for
FROM unnest(%s::int8[], %s::int4[], %s::int4[], %s::timestamptz[], %s::int8[], %s::int2[], %s::bytea[], %s::text[],
    %s::text[], %s::int4[], %s::int8[], %s::float8[], %s::int8[], %s::text[], %s::int8[], %s::int8[], %s::int8[],
    %s::text[], %s::int4[], %s::jsonb[], %s::text[], %s::int8[], %s::timestamptz[])
    AS w(id, namespace_id, handler_id, due_at, delay_ms, priority, payload, content_type, name, max_attempts,
         initial_ms, multiplier, max_ms, non_retryable, start_ms, attempt_ms, total_ms, concurrency_key,
         concurrency_limit, labels, traceparent, schedule_id, scheduled_for)
CROSS JOIN LATERAL (
    SELECT GREATEST(COALESCE(w.due_at, now() + w.delay_ms * interval '1 millisecond'), now()) AS due_at) d
RETURNING id, due_at, created_at
""")

TAKE_KEYS: Final = Statement("""
INSERT INTO {dedupe_keys} AS k
    (shard, namespace_id, handler_id, concurrency_key, key, job_id, content_hash, expires_at, sweep_at)
SELECT (w.id & 4095)::int4, w.namespace_id, w.handler_id, w.concurrency_key, w.key, w.id, w.content_hash,
    now() + w.ttl_ms * interval '1 millisecond',
    GREATEST(now() + w.ttl_ms * interval '1 millisecond', w.due_at, now() + w.delay_ms * interval '1 millisecond')
FROM unnest(%s::int8[], %s::int4[], %s::int4[], %s::text[], %s::text[], %s::bytea[], %s::int8[], %s::timestamptz[],
    %s::int8[])
    AS w(id, namespace_id, handler_id, concurrency_key, key, content_hash, ttl_ms, due_at, delay_ms)
ORDER BY 1, 2, 3, 4, 5
ON CONFLICT (shard, namespace_id, handler_id, concurrency_key, key) DO UPDATE
SET job_id = EXCLUDED.job_id, content_hash = EXCLUDED.content_hash, expires_at = EXCLUDED.expires_at,
    sweep_at = EXCLUDED.sweep_at
WHERE k.expires_at <= now() AND NOT EXISTS (SELECT FROM {jobs} j WHERE j.id = k.job_id AND j.shard = k.shard)
RETURNING k.job_id
""")

READ_KEYS: Final = Statement("""
SELECT w.id, k.job_id, k.content_hash
FROM unnest(%s::int8[], %s::int4[], %s::int4[], %s::text[], %s::text[])
    AS w(id, namespace_id, handler_id, concurrency_key, key)
JOIN {dedupe_keys} k ON k.shard = (w.id & 4095)::int4 AND k.namespace_id = w.namespace_id
    AND k.handler_id = w.handler_id AND k.concurrency_key = w.concurrency_key AND k.key = w.key
""")


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job with the id, and so the shard, that it is stored under."""

    job_id: int
    job: NewJob


async def insert_jobs(database: Database, partition_of: Sequence[int], placed: Sequence[PlacedJob]) -> list[Submitted]:
    """Store a group of jobs, all or none, and return one result for each, in order.

    `partition_of` maps a shard to its partition. Two jobs of the group may share a dedupe key: the first one wins.
    """
    partitions = {partition_of[shard_of_id(one.job_id)] for one in placed}
    alone = partitions.pop() if len(partitions) == 1 else None

    def place(statement: Statement) -> bytes:
        return statement.on_all() if alone is None else statement.on(alone)

    async def work(connection: Connection) -> dict[int, Submitted]:
        keyed = [one for one in placed if one.job.dedupe is not None]
        results = await _take_keys(connection, place, keyed) if keyed else {}
        fresh = [one for one in placed if one.job_id not in results]
        if fresh:
            cursor = await connection.cursor(binary=True).execute(place(INSERT), _insert_params(fresh))
            results |= _created(await cursor.fetchall())
        return results

    if any(one.job.dedupe for one in placed):
        results = await database.transact(work)
    else:
        results = _created(await database.run(place(INSERT), _insert_params(placed), api=True))
    return [results[one.job_id] for one in placed]


async def _take_keys(
    connection: Connection, place: Callable[[Statement], bytes], keyed: list[PlacedJob]
) -> dict[int, Submitted]:
    """Take the keys that are free, and return what the other jobs lead to."""
    first: dict[tuple[object, ...], PlacedJob] = {}
    for one in keyed:
        first.setdefault(_identity(one), one)
    takers = list(first.values())
    cursor = connection.cursor(binary=True)
    await cursor.execute(place(TAKE_KEYS), _key_params(takers))
    taken = {job_id for (job_id,) in await cursor.fetchall()}
    others = [one for one in keyed if one.job_id not in taken]
    if not others:
        return {}
    await cursor.execute(place(READ_KEYS), _key_params(others)[:5])
    by_id = {one.job_id: one for one in others}
    results = {}
    for own_id, job_id, content_hash in await cursor.fetchall():
        dedupe = by_id[own_id].job.dedupe
        differs = dedupe is not None and dedupe.content_hash != content_hash
        results[own_id] = Submitted(job_id=job_id, created=False, differs=differs)
    # A key whose time ran out in between may have been cleaned up: then it is free now.
    freed = [one for one in others if one.job_id not in results]
    return results | await _take_keys(connection, place, freed) if freed else results


def _identity(one: PlacedJob) -> tuple[object, ...]:
    job = one.job
    key = job.dedupe and job.dedupe.key
    return (shard_of_id(one.job_id), job.namespace_id, job.handler_id, job.concurrency_key or "", key)


def _created(rows: list[tuple[int, datetime, datetime]]) -> dict[int, Submitted]:
    return {
        job_id: Submitted(job_id=job_id, created=True, due_at=due_at, created_at=created_at)
        for job_id, due_at, created_at in rows
    }


def milliseconds(value: timedelta | None) -> int | None:
    """Return a duration in whole milliseconds, rounded up."""
    return None if value is None else -(-value // timedelta(milliseconds=1))


def _key_params(keyed: list[PlacedJob]) -> tuple[object, ...]:
    jobs = [one.job for one in keyed]
    dedupes = [job.dedupe for job in jobs if job.dedupe is not None]
    return (
        Int8Array([one.job_id for one in keyed]),
        Int4Array([job.namespace_id for job in jobs]),
        Int4Array([job.handler_id for job in jobs]),
        TextArray([job.concurrency_key or "" for job in jobs]),
        TextArray([dedupe.key for dedupe in dedupes]),
        ByteaArray([dedupe.content_hash for dedupe in dedupes]),
        Int8Array([milliseconds(max(dedupe.ttl, MIN_KEY_LIFE)) for dedupe in dedupes]),
        InstantArray([job.due_at for job in jobs]),
        Int8Array([milliseconds(job.delay) for job in jobs]),
    )


def _insert_params(share: Sequence[PlacedJob]) -> tuple[object, ...]:
    jobs = [one.job for one in share]
    return (
        Int8Array([one.job_id for one in share]),
        Int4Array([job.namespace_id for job in jobs]),
        Int4Array([job.handler_id for job in jobs]),
        InstantArray([job.due_at for job in jobs]),
        Int8Array([milliseconds(job.delay) for job in jobs]),
        Int2Array([job.priority for job in jobs]),
        ByteaArray([job.payload for job in jobs]),
        TextArray([job.content_type for job in jobs]),
        TextArray([job.name for job in jobs]),
        Int4Array([job.backoff.max_attempts for job in jobs]),
        Int8Array([milliseconds(job.backoff.initial) for job in jobs]),
        Float8Array([job.backoff.multiplier for job in jobs]),
        Int8Array([milliseconds(job.backoff.maximum) for job in jobs]),
        TextArray(["\n".join(job.backoff.non_retryable) or None for job in jobs]),
        Int8Array([milliseconds(job.limits.start) for job in jobs]),
        Int8Array([milliseconds(job.limits.attempt) for job in jobs]),
        Int8Array([milliseconds(job.limits.total) for job in jobs]),
        TextArray([job.concurrency_key for job in jobs]),
        Int4Array([job.concurrency_limit for job in jobs]),
        JsonbArray([job.labels for job in jobs]),
        TextArray([job.traceparent for job in jobs]),
        Int8Array([job.schedule_id for job in jobs]),
        InstantArray([job.scheduled_for for job in jobs]),
    )


# The sequence counts blocks of this size, so that two nodes can never get overlapping ones.
BLOCK: Final = 10_000


# A block older than this is left, so that ids of all nodes are in order of time but for so long.
BLOCK_AGE_S: Final = 60.0


class IdBlock:
    """Sequence values for ids, taken in blocks. Values of a block that is not used up are lost, which is harmless."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._next = 0
        self._end = 0
        self._stale_at = 0.0

    async def take(self, count: int) -> range:
        """Return `count` (at most 10 000) unused sequence values."""
        while self._next + count > self._end or time.monotonic() > self._stale_at:
            rows = await self._database.run("SELECT nextval('object_ids')", api=True)
            self._next = rows[0][0] * BLOCK
            self._end = self._next + BLOCK
            self._stale_at = time.monotonic() + BLOCK_AGE_S
        start = self._next
        self._next += count
        return range(start, self._next)
