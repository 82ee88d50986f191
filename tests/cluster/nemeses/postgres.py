"""Faults of PostgreSQL as a server: killed, restarted, crashed by one of its sessions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import psycopg

from server.embedded import StopMode
from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import Blow, Fault, Strike, beyond_a_lease, register
from tests.support.postgres_sessions import kill_session, terminate_sessions
from tests.support.waiting import NotReached, eventually

POSTGRES: Final = "postgres"
_FOUND_S: Final = 10.0


@asynccontextmanager
async def _kill(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    async with cluster.postgres_lock:
        if not cluster.postgres.running:
            yield []
            return
        await asyncio.to_thread(cluster.postgres.kill9)
        try:
            yield [POSTGRES]
        finally:
            await cluster.start_postgres()


def _restart(mode: StopMode) -> Strike:
    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        async with cluster.postgres_lock:
            if not cluster.postgres.running:
                yield []
                return
            try:
                await asyncio.to_thread(cluster.postgres.stop, mode)
                yield [POSTGRES]
            finally:
                await cluster.start_postgres()

    return strike


@asynccontextmanager
async def _terminate_backends(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    yield [POSTGRES] if await _once_there(cluster, partial(terminate_sessions, cluster.dsn)) else []


@asynccontextmanager
async def _kill_backend(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    yield [POSTGRES] if await _once_there(cluster, partial(kill_session, cluster.dsn, blow.victim)) else []


async def _once_there(cluster: Cluster, attack: "partial[int] | partial[int | None]") -> bool:
    """Carry an attack on sessions out; PostgreSQL may be down, or have no sessions just now. Say whether it hit one."""

    def hit() -> bool:
        try:
            return bool(attack())
        except psycopg.OperationalError:
            return False

    async def done() -> bool:
        async with cluster.postgres_lock:
            return await asyncio.to_thread(hit)

    try:
        await eventually(done, timeout_s=_FOUND_S, what="a session to attack")
    except NotReached:
        return False
    return True


KILL_POSTGRES: Final = register(Fault(for_all=True, kind="kill_postgres", strike=_kill)).kind
POSTGRES_AWAY: Final = register(Fault(for_all=True, kind="postgres_away", strike=_kill, hold_s=beyond_a_lease)).kind
RESTART_FAST: Final = register(Fault(for_all=True, kind="restart_postgres_fast", strike=_restart(StopMode.FAST))).kind
RESTART_IMMEDIATE: Final = register(
    Fault(for_all=True, kind="restart_postgres_immediate", strike=_restart(StopMode.IMMEDIATE))
).kind
TERMINATE_BACKENDS: Final = register(Fault(for_all=True, kind="terminate_backends", strike=_terminate_backends)).kind
KILL_BACKEND: Final = register(Fault(for_all=True, kind="kill_backend", strike=_kill_backend)).kind
