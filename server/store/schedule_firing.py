"""Finding schedules that are due, and turning them into jobs.

The reads carry no fence and decide nothing. `FIRE` decides: one statement for a batch of schedules of one partition,
under the fence. It locks the schedules in the order of their ids, applies an order only to a schedule that still is as
it was read (same `next_fire_at`, same version, not paused), and inserts the jobs of those alone. The policies and the
payload of a job are taken from the schedule's own row, so they never leave the database.
"""

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Final, LiteralString, TypeVar

import orjson

from server.domain.due import DueJob
from server.domain.due_schedule import DueSchedule, DueSchedules, Fired, FireOrder, FireTimes
from server.domain.firing import FiringPlan, ScheduleState
from server.domain.schedule import CatchUpPolicy, OverlapPolicy, ScheduleTiming
from server.domain.sharding import make_id
from server.engine.ports import OutcomeUnknown, StoreUnavailable
from server.store.arrays import InstantArray, Int4Array, Int8Array, JsonbArray
from server.store.database import Database, Row, Statement
from server.store.errors import Unavailable, UnknownOutcome
from server.store.fence import FENCE
from server.store.insert import IdBlock
from server.store.schedule_documents import timing_from_document

T = TypeVar("T")

# Live jobs that are counted of a schedule: a decision needs to know whether there are any, not how many.
MAX_LIVE: Final = 100

DUE: Final = Statement("""
SELECT s.id, s.version, s.next_fire_at, s.overlap, s.catch_up, s.catch_up_window_ms, s.jitter_ms, s.start_at, s.end_at,
    s.timing, octet_length(s.payload), live.running, live.pending, now()
FROM unnest(%s::int4[]) AS w(shard)
CROSS JOIN LATERAL (
    SELECT x.* FROM {schedules} x
    WHERE x.shard = w.shard AND NOT x.paused AND x.next_fire_at <= now() AND x.id <> ALL (%s::int8[])
    ORDER BY x.next_fire_at, x.id LIMIT %s::int8) s
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE j.state = 1) AS running, count(*) FILTER (WHERE j.state <> 1) AS pending
    FROM (SELECT k.state FROM {jobs} k WHERE s.overlap <> 5 AND k.shard = s.shard AND k.schedule_id = s.id
          ORDER BY k.scheduled_for DESC LIMIT %s::int8) j) live
LIMIT %s::int8
""")

NEXT: Final = Statement("""
SELECT w.shard, n.next_fire_at, now()
FROM unnest(%s::int4[]) AS w(shard)
CROSS JOIN LATERAL (
    SELECT x.next_fire_at FROM {schedules} x
    WHERE x.shard = w.shard AND NOT x.paused AND x.next_fire_at IS NOT NULL AND x.id <> ALL (%s::int8[])
    ORDER BY x.next_fire_at, x.id LIMIT 1) n
""")

# The columns of a job that a schedule makes, and what they are taken from: `s` is the schedule's row, `f` the firing,
# `r` the resolved part of the schedule's document, `d` when its limits on time begin. A firing that is made good late
# has its limits from the time at which it is made; its due time tells how late it is. Under BUFFER_ONE (2) jobs without
# a key of their own get one that lets them run one after the other.
JOB_COLUMNS: Final[LiteralString] = """(id, shard, namespace_id, handler_id, due_at, deadline_at, expires_at, priority,
    payload, content_type, name, max_attempts, retry_initial_ms, retry_multiplier, retry_max_ms, non_retryable,
    start_timeout_ms, attempt_timeout_ms, total_timeout_ms, concurrency_key, concurrency_limit, labels, traceparent,
    schedule_id, scheduled_for)"""
JOB_VALUES: Final[LiteralString] = """f.job_id, s.shard, s.namespace_id, s.handler_id, f.due_at,
        d.start + r.total_timeout_ms * interval '1 millisecond',
        LEAST(d.start + r.start_timeout_ms * interval '1 millisecond',
              d.start + r.total_timeout_ms * interval '1 millisecond'),
        r.priority, s.payload, r.content_type, r.name, r.max_attempts, r.retry_initial_ms, r.retry_multiplier,
        r.retry_max_ms, r.non_retryable, r.start_timeout_ms, r.attempt_timeout_ms, r.total_timeout_ms,
        COALESCE(r.concurrency_key, CASE WHEN s.overlap = 2 AND f.queues THEN 'schedule:' || s.id END),
        r.concurrency_limit, r.labels, r.traceparent, s.id, f.scheduled_for"""
JOB_SOURCES: Final[LiteralString] = """CROSS JOIN LATERAL (SELECT GREATEST(f.due_at, now()) AS start) d
    CROSS JOIN LATERAL jsonb_to_record(s.job -> 'resolved') AS r(
        name text, content_type text, priority int2, max_attempts int4, retry_initial_ms int8,
        retry_multiplier float8, retry_max_ms int8, non_retryable text[], start_timeout_ms int8,
        attempt_timeout_ms int8, total_timeout_ms int8, concurrency_key text, concurrency_limit int4, labels jsonb,
        traceparent text)"""
JOB_CONFLICT: Final[LiteralString] = (
    "ON CONFLICT (shard, schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL DO NOTHING"
)

# The firings of all orders are in arrays of their own; each order names its slice, for joining would be slow.
FIRE: Final = Statement(
    "WITH "
    + FENCE
    + """,
due AS MATERIALIZED (
    SELECT w.*, s.shard
    FROM unnest(%s::int8[], %s::timestamptz[], %s::int8[], %s::timestamptz[], %s::timestamptz[], %s::int8[],
                %s::jsonb[], %s::int4[], %s::int4[])
        AS w(id, expected, version, following, last_fired_at, last_job_id, skipped, off, n)
    JOIN me ON me.shard = (w.id & 4095)::int4
    JOIN {schedules} s ON s.id = w.id AND s.shard = me.shard
    WHERE s.next_fire_at = w.expected AND s.version = w.version AND NOT s.paused
      AND (w.following IS NULL OR w.following > w.expected)
    ORDER BY s.id FOR UPDATE OF s),
moved AS (
    UPDATE {schedules} s
    SET next_fire_at = due.following,
        last_fired_at = GREATEST(s.last_fired_at, due.last_fired_at),
        last_job_id = COALESCE(due.last_job_id, s.last_job_id),
        fired_count = s.fired_count + due.n,
        skipped_counts = CASE WHEN due.skipped IS NULL THEN s.skipped_counts ELSE (
            SELECT jsonb_object_agg(k.key, COALESCE((s.skipped_counts ->> k.key)::int8, 0)
                                         + COALESCE((due.skipped ->> k.key)::int8, 0))
            FROM (SELECT jsonb_object_keys(s.skipped_counts) UNION SELECT jsonb_object_keys(due.skipped)) AS k(key)) END
    FROM due WHERE s.id = due.id AND s.shard = due.shard
    RETURNING s.*, due.off, due.n),
born AS (
    INSERT INTO {jobs} """
    + JOB_COLUMNS
    + """
    SELECT """
    + JOB_VALUES
    + """
    FROM moved s
    CROSS JOIN LATERAL generate_series(s.off + 1, s.off + s.n) AS k
    CROSS JOIN LATERAL (
        SELECT (%s::int8[])[k] AS job_id, (%s::timestamptz[])[k] AS scheduled_for, (%s::timestamptz[])[k] AS due_at,
               true AS queues) f
    """
    + JOB_SOURCES
    + """
    """
    + JOB_CONFLICT
    + """
    RETURNING priority, due_at, id, shard, handler_id)
SELECT 0, NULL::int2, NULL::timestamptz, NULL::int8, me.shard, NULL::int4 FROM me
UNION ALL SELECT 1, NULL, NULL, moved.id, NULL, NULL FROM moved
UNION ALL SELECT 2, born.* FROM born
"""
)


class FiringStore:
    """What the firer asks of the database.

    All methods raise `StoreUnavailable` or `OutcomeUnknown`; `fire` raises `Refused` if the database refuses a batch
    for what is in it.
    """

    def __init__(self, database: Database, ids: IdBlock) -> None:
        self._database = database
        self._ids = ids

    async def due_schedules(
        self, partition: int, shards: Sequence[int], *, limit: int, without: Sequence[int] = ()
    ) -> DueSchedules:
        """Return up to `limit` schedules of these shards whose time has come, except those of the ids `without`."""
        params = (Int4Array(list(shards)), Int8Array(list(without)), limit, MAX_LIVE, limit)
        rows = await _translated(self._database.run(DUE.on(partition), params))
        schedules: list[DueSchedule] = []
        unreadable: dict[int, str] = {}
        for row in rows:
            try:
                schedules.append(_due(row))
            except (ValueError, LookupError, TypeError) as error:
                unreadable[row[0]] = repr(error)
        return DueSchedules(schedules=schedules, unreadable=unreadable, now=rows[0][-1] if rows else None)

    async def next_fire_times(self, partition: int, shards: Sequence[int], *, without: Sequence[int] = ()) -> FireTimes:
        """Return the earliest `next_fire_at` of each of these shards that has one."""
        params = (Int4Array(list(shards)), Int8Array(list(without)))
        rows = await _translated(self._database.run(NEXT.on(partition), params))
        by_shard = {shard: next_fire_at for shard, next_fire_at, _ in rows}
        return FireTimes(by_shard=by_shard, now=rows[0][-1] if rows else None)

    async def fire(self, partition: int, epochs: Sequence[tuple[int, int]], orders: Sequence[FireOrder]) -> Fired:
        """Apply orders to schedules of one partition, fenced by the (shard, epoch) of their shards."""
        sequences = iter(await _translated(self._ids.take(sum(len(order.plan.firings) for order in orders))))
        job_ids = [[make_id(next(sequences), order.due.shard) for _ in order.plan.firings] for order in orders]
        params = fire_params(epochs, orders, job_ids)
        rows = await _translated(self._database.run(FIRE.on(partition), params))
        return Fired(
            live_shards=frozenset(row[4] for row in rows if row[0] == 0),
            schedule_ids=frozenset(row[3] for row in rows if row[0] == 1),
            jobs=[DueJob(*row[1:]) for row in rows if row[0] == 2],
        )


def fire_params(
    epochs: Sequence[tuple[int, int]], orders: Sequence[FireOrder], job_ids: Sequence[Sequence[int]]
) -> tuple[object, ...]:
    """Return the parameters of `FIRE`; `job_ids` has the ids of the jobs of each order."""
    firings = [firing for order in orders for firing in order.plan.firings]
    return (
        Int4Array([shard for shard, _ in epochs]),
        Int8Array([epoch for _, epoch in epochs]),
        *_order_params(orders, job_ids),
        Int8Array([job_id for ids in job_ids for job_id in ids]),
        InstantArray([firing.nominal for firing in firings]),
        InstantArray([firing.due_at for firing in firings]),
    )


def _order_params(orders: Sequence[FireOrder], job_ids: Sequence[Sequence[int]]) -> tuple[object, ...]:
    plans = [order.plan for order in orders]
    offsets = [0]
    for plan in plans:
        offsets.append(offsets[-1] + len(plan.firings))
    return (
        Int8Array([order.due.schedule_id for order in orders]),
        InstantArray([order.due.state.next_nominal for order in orders]),
        Int8Array([order.due.version for order in orders]),
        InstantArray([plan.next_fire_at for plan in plans]),
        InstantArray([plan.firings[-1].nominal if plan.firings else None for plan in plans]),
        Int8Array([ids[-1] if ids else None for ids in job_ids]),
        JsonbArray([_counts(plan) for plan in plans]),
        Int4Array(offsets[:-1]),
        Int4Array([len(plan.firings) for plan in plans]),
    )


def _counts(plan: FiringPlan) -> bytes | None:
    return orjson.dumps({reason.value: count for reason, count in plan.skipped.items()}) if plan.skipped else None


def _due(row: Row) -> DueSchedule:
    (schedule_id, version, next_fire_at, overlap, catch_up, window_ms, jitter_ms, start_at, end_at, timing,
     payload_bytes, running, pending, _) = row  # fmt: skip
    state = ScheduleState(
        schedule_id=schedule_id,
        timing=ScheduleTiming(
            spec=timing_from_document(timing),
            start_at=start_at,
            end_at=end_at,
            jitter=timedelta(milliseconds=jitter_ms),
        ),
        next_nominal=next_fire_at,
        overlap=OverlapPolicy(overlap),
        catch_up=CatchUpPolicy(catch_up),
        catch_up_window=timedelta(milliseconds=window_ms),
        live_running=running,
        live_pending=pending,
    )
    return DueSchedule(state=state, version=version, payload_bytes=payload_bytes)


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except Unavailable as error:
        raise StoreUnavailable(str(error)) from error
    except UnknownOutcome as error:
        raise OutcomeUnknown(str(error)) from error
