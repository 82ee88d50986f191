"""Time partitions: there before they are needed, made on the spot if not, and dropped whole."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from server.domain.job import AttemptOutcome, JobState
from server.domain.outcome import Finish
from server.store import finish, partitions
from server.store.database import Connection
from server.store.engine_store import PostgresEngineStore
from server.store.errors import Refused, Unavailable
from server.store.partitions import (
    PARENTS,
    Retention,
    drop_expired_partitions,
    ensure_time_partitions,
    partition_day,
    partition_name,
)
from tests.integration.store.bench import INCARNATION, NODE, Bench

DAY = timedelta(days=1)


async def days(store: Bench, parent: str) -> list[date]:
    rows = await store.sql(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = %s::regclass",
        parent,
    )
    found = [partition_day(parent, name) for (name,) in rows]
    assert None not in found
    return sorted(day for day in found if day is not None)


async def make(store: Bench, parent: str, day: date) -> None:
    name, end = partition_name(parent, day), day + DAY
    await store.sql(f"CREATE TABLE {name} PARTITION OF {parent} FOR VALUES FROM ('{day}Z') TO ('{end}Z')")


async def today(store: Bench) -> date:
    return (await store.now()).astimezone(UTC).date()


async def test_partitions_are_made_ahead(store: Bench) -> None:
    """At least three days from now, and yesterday's, for a statement that began before midnight."""
    now = await today(store)
    for parent in PARENTS:
        assert await days(store, parent) == [now + n * DAY for n in range(-1, 5)]
    assert await store.database.transact(ensure_time_partitions) == []


async def test_missing_days_are_made_and_no_others(store: Bench) -> None:
    now = await today(store)
    await store.sql(f"DROP TABLE {partition_name('attempts', now + 2 * DAY)}")
    made = await store.database.transact(ensure_time_partitions)
    assert made == [partition_name("attempts", now + 2 * DAY)]


async def test_two_nodes_may_make_them_at_the_same_time(store: Bench) -> None:
    now = await today(store)
    for parent in PARENTS:
        await store.sql(f"DROP TABLE {partition_name(parent, now + 3 * DAY)}")
    makers = [store.database.transact(ensure_time_partitions, api=n % 2 == 0) for n in range(6)]
    made = [name for names in await asyncio.gather(*makers) for name in names]
    assert made == [partition_name(parent, now + 3 * DAY) for parent in PARENTS]


async def test_there_is_no_gap_at_midnight(store: Bench) -> None:
    """Every instant from yesterday to four days from now belongs to one leaf, the first of a day to the new one."""
    job = await store.start()
    await finish.finish(store.database, 0, [failed(job)])
    first = datetime.combine(await today(store) - DAY, datetime.min.time(), UTC)
    microsecond = timedelta(microseconds=1)
    instants = [first + n * DAY + off for n in range(6) for off in (timedelta(0), DAY / 2, DAY - microsecond)]
    for number, at in enumerate(instants):
        for table, column in (("job_history", "finished_at"), ("attempts", "ended_at")):
            move = f"UPDATE {table} SET {column} = %s RETURNING tableoid::regclass::text"
            [(leaf,)] = await store.sql(move, at)
            parent = "job_history_unsuccessful" if table == "job_history" else table
            assert leaf == partition_name(parent, at.date()), number


def failed(job: Any) -> Finish:
    outcome = AttemptOutcome.FAILED
    return Finish(ref=job.ref, state=JobState.FAILED, error_type="E", message="m", outcome=outcome)


@pytest.mark.parametrize("parent", PARENTS)
async def test_a_missing_day_is_made_by_the_write_that_needs_it(store: Bench, parent: str) -> None:
    engine_store = PostgresEngineStore(store.database, node=NODE, incarnation=INCARNATION)
    refs = await store.start_many(2)
    await store.sql(f"DROP TABLE {partition_name(parent, await today(store))}")
    done = Finish(ref=refs[0], state=JobState.COMPLETED, result=b"", content_type="")
    outcome = AttemptOutcome.FAILED
    bad = Finish(ref=refs[1], state=JobState.FAILED, error_type="E", message="m", outcome=outcome)
    ended = await engine_store.finish(0, [done, bad])
    assert sorted(one.ref for one in ended) == refs
    assert await today(store) in await days(store, parent)


async def test_many_writes_at_once_may_miss_the_same_day(store: Bench) -> None:
    """The first statements after a midnight without partitions come from several flushers and partitions at once."""
    engine_store = PostgresEngineStore(store.database, node=NODE, incarnation=INCARNATION)
    refs = [(shard, (await store.start_many(1, shard=shard))[0]) for shard in range(0, 64, 8)]
    for parent in PARENTS:
        await store.sql(f"DROP TABLE {partition_name(parent, await today(store))}")

    async def end(shard: int, ref: Any) -> int:
        outcome = AttemptOutcome.FAILED
        one = Finish(ref=ref, state=JobState.FAILED, error_type="E", message="m", outcome=outcome)
        return len(await engine_store.finish(shard // 4, [one]))

    assert await asyncio.gather(*(end(shard, ref) for shard, ref in refs)) == [1] * len(refs)


async def test_retention_drops_whole_days_of_each_class(store: Bench) -> None:
    now = await today(store)
    for parent in PARENTS:
        for age in (6, 7, 8, 9, 29, 31, 32, 60):
            await make(store, parent, now - age * DAY)
    retention = Retention(completed=7 * DAY, unsuccessful=30 * DAY)

    async def drop(connection: Connection) -> list[str]:
        return await drop_expired_partitions(connection, retention)

    dropped = await store.database.transact(drop)
    # A day is over its retention only when its last instant is; day 7 holds rows that are six days and some old.
    ages = {
        "job_history_completed": (60, 32, 31, 29, 9, 8),
        "job_history_unsuccessful": (60, 32, 31),
        "attempts": (60, 32, 31),
    }
    assert dropped == [partition_name(parent, now - age * DAY) for parent in PARENTS for age in ages[parent]]
    assert await store.database.transact(drop) == []
    assert (await days(store, "attempts"))[0] == now - 29 * DAY


async def test_a_partition_in_use_is_dropped_later(store: Bench) -> None:
    now = await today(store)
    await make(store, "attempts", now - 60 * DAY)
    name = partition_name("attempts", now - 60 * DAY)

    async def drop(connection: Connection) -> list[str]:
        return await drop_expired_partitions(connection, Retention())

    async with await store.connect() as reader:
        await reader.execute(f"SELECT FROM {name}".encode())
        with pytest.raises(Unavailable, match="lock timeout"):
            await store.database.transact(drop)
        assert (await days(store, "attempts"))[0] == now - 60 * DAY
        await reader.rollback()
    assert await store.database.transact(drop) == [name]


async def test_rows_of_a_dropped_day_go_without_a_delete(store: Bench) -> None:
    job = await store.start()
    await finish.finish(store.database, 0, [failed(job)])
    age = 40 * DAY
    for parent in PARENTS:
        await make(store, parent, await today(store) - age)
    await store.sql("UPDATE job_history SET finished_at = finished_at - %s", age)
    await store.sql("UPDATE attempts SET ended_at = ended_at - %s", age)

    async def drop(connection: Connection) -> list[str]:
        return await drop_expired_partitions(connection, Retention())

    assert len(await store.database.transact(drop)) == 3
    assert await store.history(job.job_id) is None
    assert await store.attempts(job.job_id) == []


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("attempts_20260131", date(2026, 1, 31)),
        ("attempts_20260132", None),
        ("attempts_default", None),
        ("attempts", None),
        ("job_history_completed_20260131", None),
    ],
)
def test_day_of_a_partition_is_read_from_its_name(name: str, day: date | None) -> None:
    assert partition_day("attempts", name) == day
    if day is not None:
        assert partition_name("attempts", day) == name


async def test_with_time_partitions_passes_other_errors_on(store: Bench) -> None:
    calls = []

    async def write() -> None:
        calls.append(1)
        await store.sql("SELECT 1 / 0")

    with pytest.raises(Refused) as caught:
        await partitions.with_time_partitions(store.database, write)
    assert caught.value.sqlstate == "22012"
    assert len(calls) == 1
