"""The pools come back soon after an outage, however long it was."""

import asyncio
import time
from functools import partial

from server.store.errors import Unavailable, UnknownOutcome
from tests.integration.store.bench import Bench
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

# Pauses that doubled from one second on would end 3 s and 7 s after the beginning of the outage.
OUTAGE_S = 3.3
SOON_S = 2.5


async def test_pools_come_back_soon_after_an_outage(store: Bench, postgres: PostgresServer) -> None:
    await asyncio.to_thread(postgres.stop)
    began = time.monotonic()
    try:
        # Everybody finds out at once.
        await eventually(partial(_away, store), what="the outage")
        await asyncio.sleep(OUTAGE_S - (time.monotonic() - began))
    finally:
        await asyncio.to_thread(postgres.start)
    for api in (False, True):
        await eventually(partial(_works, store, api=api), timeout_s=SOON_S, what="a connection")
    await eventually(partial(_full, store), timeout_s=SOON_S, what="full pools")


async def _works(store: Bench, *, api: bool) -> bool:
    try:
        return await store.database.run("SELECT 1", timeout=0.2, api=api) == [(1,)]
    except (Unavailable, UnknownOutcome):
        return False


async def _away(store: Bench) -> bool:
    return not await _works(store, api=False) and not await _works(store, api=True)


async def _full(store: Bench) -> bool:
    rows = await store.database.run(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'shardw%%'"
    )
    return bool(rows[0][0] == 4 + 2)
