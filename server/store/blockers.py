"""Statements that must not wait for back ends of their own role.

A node that was stopped in the middle of a statement holds that statement's locks, and while it is being sent a large
result none of PostgreSQL's time-outs ends it. Whoever replaces it does.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from psycopg.rows import tuple_row

from server.store.database import Connection, Database, Query, Row
from server.store.errors import StoreError

log = logging.getLogger(__name__)

# So long a healthy statement may be in the way; it takes milliseconds.
PATIENCE_S: Final = 0.3
_AGAIN_S: Final = 0.1
_CALL_S: Final = 2.0

# Who waits for a lock itself is not the cause: whoever holds that lock is.
TERMINATE: Final = """
SELECT a.pid, a.application_name, pg_terminate_backend(a.pid)
FROM unnest(pg_blocking_pids(%s::int4)) AS b(pid) JOIN pg_stat_activity a ON a.pid = b.pid
WHERE a.usename = current_user AND a.wait_event_type IS DISTINCT FROM 'Lock'
"""


async def run_against_own(database: Database, query: Query, params: Sequence[object]) -> list[Row]:
    """Run one statement in a transaction of its own, and return its rows as tuples.

    Back ends of the same role that block it for longer than `PATIENCE_S` are terminated. Raises as `Database.run`,
    `Locked` if others are in the way.
    """

    async def work(connection: Connection) -> list[Row]:
        cursor = connection.cursor(row_factory=tuple_row, binary=True)
        # Asked for in the transaction: behind a pooler the driver knows another process.
        await cursor.execute("SELECT pg_backend_pid()")
        [(pid,)] = await cursor.fetchall()
        watch = asyncio.create_task(_clear_the_way(database, pid), name=f"blockers-of-{pid}")
        try:
            await cursor.execute(query, params)
            return await cursor.fetchall()
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    return await database.transact(work, api=False)


async def _clear_the_way(database: Database, pid: int) -> None:
    """Terminate what blocks a back end, until cancelled."""
    await asyncio.sleep(PATIENCE_S)
    while True:
        try:
            for blocker, name, ended in await database.run(TERMINATE, (pid,), timeout=_CALL_S, api=True):
                log.warning("a back end in the way is terminated", extra={"pid": blocker, "of": name, "ended": ended})
        except StoreError as error:
            log.debug("blockers not seen", extra={"error": str(error)})
        # Behind the first there may be others.
        await asyncio.sleep(_AGAIN_S)
