"""Numbers for people, with bounded work: sampled or estimated, never counted over the table of jobs.

What is due is found by skipping through the due index from one (shard, handler, priority) to the next. A count that
reaches its cap is a lower bound.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from server.domain.dispatch import is_queue_lease
from server.store.database import Database, Statement

# Due rows counted per partition, and per (shard, handler, priority).
MAX_COUNTED: Final = 10_000
# (shard, handler, priority) looked at per partition.
MAX_GROUPS: Final = 5_000

DUE: Final = Statement("""
WITH RECURSIVE seen AS (
    (SELECT x.shard, x.handler_id, x.priority, x.due_at, 1 AS n FROM {jobs} x
     WHERE x.state = 0 ORDER BY x.shard, x.handler_id, x.priority, x.due_at, x.id LIMIT 1)
    UNION ALL
    SELECT m.*, s.n + 1 FROM seen s CROSS JOIN LATERAL (
        SELECT x.shard, x.handler_id, x.priority, x.due_at FROM {jobs} x
        WHERE x.state = 0 AND (x.shard, x.handler_id, x.priority) > (s.shard, s.handler_id, s.priority)
        ORDER BY x.shard, x.handler_id, x.priority, x.due_at, x.id LIMIT 1) m
    WHERE s.n < %s::int8),
late AS MATERIALIZED (SELECT s.shard, s.handler_id, s.priority, s.due_at FROM seen s WHERE s.due_at <= now()),
counted AS (
    SELECT c.handler_id, c.shard, count(*) AS n FROM (
        SELECT l.handler_id, l.shard FROM late l CROSS JOIN LATERAL (
            SELECT x.id FROM {jobs} x
            WHERE x.state = 0 AND x.shard = l.shard AND x.handler_id = l.handler_id AND x.priority = l.priority
              AND x.due_at <= now()
            ORDER BY x.due_at, x.id LIMIT 10000) q
        LIMIT %s::int8) c
    GROUP BY c.handler_id, c.shard)
SELECT l.handler_id, l.shard, min(l.due_at), COALESCE(max(c.n), 0)::int8
FROM late l LEFT JOIN counted c ON c.handler_id = l.handler_id AND c.shard = l.shard
GROUP BY l.handler_id, l.shard
""")

RUNNING: Final = Statement("""
SELECT r.handler_id, r.worker_id, r.shard, count(*), min(r.started_at) FROM (
    SELECT x.handler_id, x.worker_id, x.shard, x.started_at FROM {jobs} x WHERE x.state = 1
    ORDER BY x.shard, x.worker_id, x.id LIMIT %s::int8) r
GROUP BY r.handler_id, r.worker_id, r.shard
""")

# Few rows are counted, many are estimated from the statistics of the tables.
TOTALS: Final = """
SELECT now(),
    (SELECT count(*) FROM (SELECT FROM jobs WHERE state = 0 LIMIT 10000) p)
        + (SELECT count(*) FROM (SELECT FROM jobs WHERE state = 2 LIMIT 10000) p),
    (SELECT sum(CASE WHEN s.live > 0 THEN s.live ELSE GREATEST(c.reltuples, 0) END)::int8
     FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     CROSS JOIN LATERAL (SELECT pg_stat_get_live_tuples(c.oid) AS live) s
     WHERE i.inhparent = 'jobs'::regclass),
    (SELECT count(*) FROM (SELECT FROM schedule_names LIMIT 10000) n),
    (SELECT GREATEST(reltuples, 0)::int8 FROM pg_class WHERE oid = 'schedule_names'::regclass),
    (SELECT count(*) FROM (SELECT FROM workers WHERE ended_at IS NULL AND lease_until > now() LIMIT 100000) w)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSample:
    """Due jobs of a handler: how many, and since when the oldest has been due."""

    count: int
    oldest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSample:
    """Jobs of a handler that were published and not started: how many, and since when the oldest has been published."""

    count: int
    oldest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """Due and running jobs; `now` is the database clock."""

    now: datetime
    due: dict[int, DueSample] = field(default_factory=dict)
    running_by_handler: dict[int, int] = field(default_factory=dict)
    running_by_worker: dict[int, int] = field(default_factory=dict)
    published: dict[int, PublishedSample] = field(default_factory=dict)
    """By handler; they are among the running ones."""
    due_by_shard: dict[int, int] = field(default_factory=dict)
    running_by_shard: dict[int, int] = field(default_factory=dict)
    pending: int = 0
    schedules: int = 0
    workers: int = 0

    @property
    def running(self) -> int:
        """Running jobs in all."""
        return sum(self.running_by_handler.values())


async def sample_load(database: Database, partitions: int) -> LoadSample:
    """Sample all partitions, one after the other on whatever connection is free."""
    due: dict[int, DueSample] = {}
    by_handler: dict[int, int] = {}
    by_worker: dict[int, int] = {}
    published: dict[int, PublishedSample] = {}
    due_by_shard: dict[int, int] = {}
    running_by_shard: dict[int, int] = {}
    for partition in range(partitions):
        rows = await database.run(DUE.on(partition), (MAX_GROUPS, MAX_COUNTED), api=True)
        for handler_id, shard, oldest, count in rows:
            due_by_shard[shard] = due_by_shard.get(shard, 0) + count
            known = due.get(handler_id)
            if known is not None:
                oldest, count = min(oldest, known.oldest), count + known.count
            due[handler_id] = DueSample(count=count, oldest=oldest)
        rows = await database.run(RUNNING.on(partition), (MAX_COUNTED,), api=True)
        for handler_id, worker_id, shard, count, oldest in rows:
            running_by_shard[shard] = running_by_shard.get(shard, 0) + count
            by_handler[handler_id] = by_handler.get(handler_id, 0) + count
            by_worker[worker_id] = by_worker.get(worker_id, 0) + count
            if is_queue_lease(worker_id):
                before = published.get(handler_id, PublishedSample(count=0, oldest=oldest))
                published[handler_id] = PublishedSample(count=before.count + count, oldest=min(before.oldest, oldest))
    now, counted, estimated, schedules, estimated_schedules, workers = (await database.run(TOTALS, api=True))[0]
    running = sum(by_handler.values())
    return LoadSample(
        now=now,
        due=due,
        running_by_handler=by_handler,
        running_by_worker=by_worker,
        published=published,
        due_by_shard=due_by_shard,
        running_by_shard=running_by_shard,
        pending=counted if counted < MAX_COUNTED else max(counted, (estimated or 0) - running),
        schedules=schedules if schedules < MAX_COUNTED else max(schedules, estimated_schedules or 0),
        workers=workers,
    )
