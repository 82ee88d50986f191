"""Lists of jobs, live and finished.

A list merges live and finished jobs by descending id, read in one statement and so in one snapshot: a job that finishes
between two pages keeps its id and is seen exactly once. Each page walks a bounded number of rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Final, LiteralString

from server.domain.job import JobState
from server.domain.sharding import shard_of_id
from server.store.arrays import Int2Array
from server.store.database import Connection, Database, Row, Statement
from server.store.jobs_read import COMMON_COLUMNS, FINISHED_COLUMNS, LIVE_COLUMNS, WORKER_NAME, JobRecord, record

# Rows that one page of a list walks at most in each of the three tables, whether they match or not.
WALK: Final = 10_000
# Above every id.
NO_CURSOR: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a list shows; None and empty mean all. `labels` is a JSON object that the job's labels contain."""

    namespace_id: int
    handler_id: int | None = None
    states: frozenset[JobState] = frozenset()
    labels: bytes | None = None
    schedule_id: int | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs, the newest first; `next_cursor` is None at the end of the list."""

    jobs: list[JobRecord]
    next_cursor: int | None


SHOWN_COLUMNS: Final[LiteralString] = (
    COMMON_COLUMNS + ", x.finished_at, x.result_content_type, x.open_claim, x.cancel_requested"
)

# One walk per table, each stops as soon as it has filled the page: nothing in it sorts. The last row of a full walk
# comes along even if it does not match, for it says where the next page begins.
_WALK: Final[LiteralString] = """
(SELECT '<table>', x.hit, x.n = 10000 AS walked_out, <columns>, <worker> FROM (
    SELECT x.*, row_number() OVER (ORDER BY x.id DESC) AS n,
        x.namespace_id = %(namespace_id)s::int4
        AND (%(handler_id)s::int4 IS NULL OR x.handler_id = %(handler_id)s::int4)
        AND (%(states)s::int2[] IS NULL OR x.state = ANY(%(states)s::int2[]))
        AND (%(labels)s::jsonb IS NULL OR x.labels @> %(labels)s::jsonb)
        AND (%(created_from)s::timestamptz IS NULL OR x.created_at >= %(created_from)s::timestamptz)
        AND (%(created_before)s::timestamptz IS NULL OR x.created_at < %(created_before)s::timestamptz) AS hit
    FROM (SELECT <fields> FROM <source> x WHERE x.id < %(cursor)s::int8 <of_schedule>) x
    ORDER BY x.id DESC LIMIT 10000) x
WHERE x.hit OR x.n = 10000
ORDER BY x.id DESC LIMIT %(page_size)s::int8)
"""
assert f"LIMIT {WALK})" in _WALK

# A schedule's live jobs are few and indexed by another order: they are gathered first, then sorted.
_LIVE_OF_SCHEDULE: Final[LiteralString] = """
WITH live AS MATERIALIZED (
    SELECT l.* FROM {jobs} l
    WHERE l.shard = %(shard)s::int4 AND l.schedule_id = %(schedule_id)s::int8 AND l.id < %(cursor)s::int8)
"""

# The planner would otherwise gather and sort whole tables, which it does not know to be large.
NO_SORTS: Final = (
    "SELECT set_config('enable_sort', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)"
)

_Source = tuple[LiteralString, LiteralString, frozenset[JobState]]
_SOURCES: Final[tuple[_Source, ...]] = (
    ("jobs", LIVE_COLUMNS, frozenset({JobState.PENDING, JobState.RUNNING, JobState.PARKED})),
    ("job_history_completed", FINISHED_COLUMNS, frozenset({JobState.COMPLETED})),
    ("job_history_unsuccessful", FINISHED_COLUMNS, frozenset({JobState.FAILED, JobState.CANCELLED})),
)


def _walk(source: _Source, *, of_schedule: bool) -> LiteralString:
    table, columns, _ = source
    gathered = of_schedule and table == "jobs"
    return (
        _WALK.replace("<table>", table)
        .replace("<source>", "live" if gathered else table)
        .replace("<of_schedule>", "AND x.schedule_id = %(schedule_id)s::int8" if of_schedule else "")
        .replace("<columns>", SHOWN_COLUMNS)
        .replace("<fields>", columns)
        .replace("<worker>", WORKER_NAME)
    )


def _list_statement(numbers: Sequence[int], *, of_schedule: bool) -> Statement:
    walks: list[LiteralString] = [_walk(_SOURCES[number], of_schedule=of_schedule) for number in numbers]
    head: LiteralString = _LIVE_OF_SCHEDULE if of_schedule and 0 in numbers else ""
    return Statement(head + " UNION ALL ".join(walks))


LISTS: Final[dict[tuple[tuple[int, ...], bool], Statement]] = {
    (numbers, of_schedule): _list_statement(numbers, of_schedule=of_schedule)
    for numbers in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
    for of_schedule in (False, True)
}


async def list_jobs(
    database: Database, partition_of: Sequence[int], wanted: JobFilter, cursor: int, page_size: int
) -> JobPage:
    """Return up to `page_size` jobs with ids below `cursor`, the newest first, without payloads and results."""
    statement, params = list_query(partition_of, wanted, cursor, page_size)

    async def work(connection: Connection) -> list[Row]:
        await connection.execute(NO_SORTS)
        found = await connection.cursor(binary=True).execute(statement, params)
        return await found.fetchall()

    rows = await database.transact(work)
    # A walk that ended early has not looked below its last row; what another walk found there waits for a later page.
    counts = Counter(row[0] for row in rows)
    ends = {row[0]: row[3] for row in rows}
    early = {row[0] for row in rows if row[2]} | {table for table, count in counts.items() if count == page_size}
    floor = max((ends[table] for table in early), default=0)
    hits = sorted((row for row in rows if row[1] and row[3] >= floor), key=itemgetter(3), reverse=True)
    jobs = [record(row[3:]) for row in hits[:page_size]]
    if len(hits) > page_size:
        floor = jobs[-1].job_id
    return JobPage(jobs=jobs, next_cursor=floor or None)


def list_query(
    partition_of: Sequence[int], wanted: JobFilter, cursor: int, page_size: int
) -> tuple[bytes, dict[str, object]]:
    """Return the statement of one page with its parameters; to be run under `NO_SORTS`."""
    numbers = tuple(
        number for number, (_, _, served) in enumerate(_SOURCES) if not wanted.states or served & wanted.states
    )
    # Without a schedule the statement names no partition.
    shard = shard_of_id(wanted.schedule_id or 0)
    params: dict[str, object] = {
        "namespace_id": wanted.namespace_id,
        "handler_id": wanted.handler_id,
        "states": Int2Array([int(state) for state in sorted(wanted.states)]) if wanted.states else None,
        "labels": None if wanted.labels is None else wanted.labels.decode(),
        "created_from": wanted.created_from,
        "created_before": wanted.created_before,
        "schedule_id": wanted.schedule_id,
        "shard": shard,
        "cursor": cursor,
        "page_size": page_size,
    }
    return LISTS[numbers, wanted.schedule_id is not None].on(partition_of[shard]), params
