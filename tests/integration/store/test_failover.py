"""A database of two servers: whoever is the primary is found, and a standby is not kept."""

import asyncio
from functools import partial

from server.store.database import Database, single_connection
from server.store.errors import Unavailable, UnknownOutcome
from tests.integration.store.bench import bench
from tests.support.postgres_pair import PostgresPair
from tests.support.waiting import eventually

_BACK_S = 15.0


async def _writes(database: Database) -> bool:
    try:
        return bool(await database.run("INSERT INTO t VALUES (1) RETURNING a"))
    except (Unavailable, UnknownOutcome):
        return False


async def test_the_new_primary_is_found_after_a_failover() -> None:
    with PostgresPair() as pair:
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
