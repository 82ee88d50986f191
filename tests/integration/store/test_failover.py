"""A database of two servers: whoever is the primary is found, and a standby is not kept."""

import asyncio
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from server.store import jobs_read, shards
from server.store.database import Database, single_connection
from server.store.errors import Unavailable, UnknownOutcome
from server.store.insert import PlacedJob, insert_jobs
from server.store.migrate import migrate
from tests.integration.store.bench import PARTITION_OF, bench
from tests.support.postgres_pair import PostgresPair
from tests.support.waiting import eventually

_BACK_S = 15.0


async def _writes(database: Database) -> bool:
    try:
        return bool(await database.run("INSERT INTO t VALUES (1) RETURNING a"))
    except (Unavailable, UnknownOutcome):
        return False


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgresPair]:
    with PostgresPair() as pair:
        yield pair


async def test_the_new_primary_is_found_after_a_failover(pair: PostgresPair) -> None:
    # The URI names two hosts and says nothing of what is wanted of them.
    dsn = pair.dsn().partition("?")[0]
    async with single_connection(dsn) as connection:
        await connection.execute("CREATE TABLE t (a integer)")
    database = Database(dsn, hot_connections=2, api_connections=2)
    await database.open()
    try:
        for _ in range(2):
            assert await _writes(database)
            await asyncio.to_thread(pair.failover)
            await eventually(partial(_writes, database), timeout_s=_BACK_S, what="a connection to the new primary")
            await asyncio.to_thread(pair.rebuild)
    finally:
        await database.close()


async def test_what_the_standby_does_not_have_is_not_read_back(pair: PostgresPair) -> None:
    """A commit that is given up, and what it has stored, can be seen on the primary, and would be lost with it."""
    dsn = pair.dsn(pair.primary.create_database())
    await migrate(dsn)
    async with bench(dsn) as store:
        lease = [(5, 1, 7)]
        job_id = (await store.ids.take(1))[0] << 12
        placed = PlacedJob(job_id, store.job())
        with pair.standby_held():
            storing = asyncio.create_task(insert_jobs(store.database, PARTITION_OF, [placed]))
            fencing = asyncio.create_task(shards.fence_in(store.database, lease, "node-2", 12))
            await eventually(lambda: _given_up(pair) == 2, what="commits that wait for the standby")
            for task in (storing, fencing):
                with pytest.raises(UnknownOutcome):
                    await task
            assert await jobs_read.gone(store.database, [job_id]) == set()
            for reading in (
                jobs_read.stored_times(store.database, [job_id]),
                shards.fence_in(store.database, lease, "node-2", 12),
            ):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await reading
        assert list(await jobs_read.stored_times(store.database, [job_id])) == [job_id]
        assert await shards.fence_in(store.database, lease, "node-2", 12) == {5: 2}


def _given_up(pair: PostgresPair) -> int:
    """Cancel the commits that wait for the standby; return how many there were."""
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(pair.primary.dsn("postgres"), autocommit=True) as connection:
        return len(connection.execute(cancel).fetchall())


async def test_a_connection_that_has_become_read_only_is_given_up(database: str) -> None:
    async with bench(database) as store:
        one = Database(database, hot_connections=1, api_connections=1)
        await one.open()
        try:
            await one.run("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            await store.sql("CREATE TABLE t (a integer)")
            assert not await _writes(one)
            assert await _writes(one)
        finally:
            await one.close()
