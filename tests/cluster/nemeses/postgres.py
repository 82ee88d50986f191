"""Faults of PostgreSQL: killed, and its connections cut off."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import Blow, Fault, beyond_a_lease, register
from tests.support.waiting import eventually

_TERMINATE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@asynccontextmanager
async def _kill(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    async with cluster.postgres_lock:
        if not cluster.postgres.running:
            yield []
            return
        await asyncio.to_thread(cluster.postgres.kill9)
        try:
            yield ["postgres"]
        finally:
            await cluster.start_postgres()


@asynccontextmanager
async def _terminate_backends(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    async def terminated() -> bool:
        async with cluster.postgres_lock:
            return await asyncio.to_thread(_terminate_all, cluster.dsn) > 0

    # PostgreSQL may be down, or the nodes may have no connection to it just now.
    await eventually(terminated, timeout_s=10.0, what="a back end to terminate")
    yield ["postgres"]


def _terminate_all(dsn: str) -> int:
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=2) as connection:
            return len(connection.execute(_TERMINATE).fetchall())
    except psycopg.OperationalError:
        return 0


KILL_POSTGRES: Final = register(Fault(kind="kill_postgres", strike=_kill)).kind
POSTGRES_AWAY: Final = register(Fault(kind="postgres_away", strike=_kill, hold_s=beyond_a_lease)).kind
TERMINATE_BACKENDS: Final = register(Fault(kind="terminate_backends", strike=_terminate_backends)).kind
