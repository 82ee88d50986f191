"""Time partitions of `job_history` and `attempts`: made ahead, dropped by retention.

A partition holds one UTC day. Rows are never deleted one by one; a day past its retention is dropped whole.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

from psycopg.sql import SQL, Identifier, Literal

from server.store.database import MISSING_PARTITION, Connection, Database, Query, Row
from server.store.errors import Refused

log = logging.getLogger(__name__)

T = TypeVar("T")

DAYS_AHEAD: Final = 4
# Yesterday is made too: around midnight a statement's now() may lie before the day of the partition check.
DAYS_BEHIND: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished jobs are kept, by final class. Attempts are kept as long as the longer of the two."""

    completed: timedelta = timedelta(days=7)
    unsuccessful: timedelta = timedelta(days=30)


PARENTS: Final = ("job_history_completed", "job_history_unsuccessful", "attempts")


def keep_times(retention: Retention) -> dict[str, timedelta]:
    """Return for how long the rows of each of `PARENTS` are kept."""
    return {
        "job_history_completed": retention.completed,
        "job_history_unsuccessful": retention.unsuccessful,
        "attempts": max(retention.completed, retention.unsuccessful),
    }


def partition_name(parent: str, day: date) -> str:
    """Return the name of the partition of `parent` for a UTC day."""
    return f"{parent}_{day:%Y%m%d}"


def partition_day(parent: str, name: str) -> date | None:
    """Return the day of a partition by its name, None if it is not one of ours."""
    suffix = name.removeprefix(parent + "_")
    try:
        return datetime.strptime(suffix, "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None


async def ensure_time_partitions(connection: Connection) -> list[str]:
    """Make the partitions from yesterday to `DAYS_AHEAD` days ahead, and return the names of new ones.

    Only inside a transaction: nodes take turns, for `IF NOT EXISTS` is no help against one that is not yet committed.
    """
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('shardwheel time partitions'))")
    row = await (await connection.execute("SELECT (now() AT TIME ZONE 'UTC')::date")).fetchone()
    assert row is not None
    today: date = row[0]
    made = []
    for parent in PARENTS:
        existing = await _existing(connection, parent)
        for offset in range(-DAYS_BEHIND, DAYS_AHEAD + 1):
            day = today + timedelta(days=offset)
            if day in existing:
                continue
            statement = SQL("CREATE TABLE IF NOT EXISTS {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(
                Identifier(partition_name(parent, day)),
                Identifier(parent),
                Literal(f"{day} 00:00:00+00"),
                Literal(f"{day + timedelta(days=1)} 00:00:00+00"),
            )
            await connection.execute(statement)
            made.append(partition_name(parent, day))
    return made


async def run_history(
    database: Database, query: Query, params: Sequence[object] = (), *, timeout: float = 6.0, api: bool = False
) -> list[Row]:
    """Like `Database.run`, for statements that write to the history or to `attempts`.

    If the day's partition is missing, the time partitions are made on the spot and the statement is run again.
    """
    try:
        return await database.run(query, params, timeout=timeout, api=api)
    except Refused as error:
        if error.sqlstate != MISSING_PARTITION:
            raise
        log.warning("time partition missing: making it now")
    try:
        await database.transact(ensure_time_partitions, api=api)
    except Refused as error:
        # Another node made it at the same time; if not, the second try says what is wrong.
        log.warning("time partitions could not be made", extra={"error": str(error)})
    return await database.run(query, params, timeout=timeout, api=api)


async def with_time_partitions(database: Database, write: Callable[[], Awaitable[T]]) -> T:
    """Run a statement that writes to the history; if a day has no partition yet, make it and run it once more."""
    try:
        return await write()
    except Refused as error:
        if error.sqlstate != MISSING_PARTITION:
            raise
        made = await database.transact(ensure_time_partitions)
        log.warning("time partitions were missing and have been made", extra={"partitions": made})
        return await write()


async def drop_expired_partitions(connection: Connection, retention: Retention) -> list[str]:
    """Drop the days whose every row is past its retention, and return their names.

    Only inside a transaction. A drop waits for its locks for a short time only, since new writes of the history queue
    up behind it; a partition that is in use is tried again at the next call.
    """
    await connection.execute("SET LOCAL lock_timeout = '300ms'")
    row = await (await connection.execute("SELECT now()")).fetchone()
    assert row is not None
    now: datetime = row[0]
    keep = keep_times(retention)
    dropped = []
    for parent in PARENTS:
        for day in sorted(await _existing(connection, parent)):
            end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
            if end > now - keep[parent]:
                break
            name = partition_name(parent, day)
            await connection.execute(SQL("DROP TABLE {}").format(Identifier(name)))
            dropped.append(name)
            log.info("partition dropped by retention", extra={"partition": name})
    return dropped


async def _existing(connection: Connection, parent: str) -> set[date]:
    cursor = await connection.execute(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = %s::regclass",
        (parent,),
    )
    days = (partition_day(parent, name) for (name,) in await cursor.fetchall())
    return {day for day in days if day is not None}
