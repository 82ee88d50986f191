"""Foreign sessions in PostgreSQL that get in the way: they take all connections, or hold locks."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from typing import Final, LiteralString

import psycopg

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import Blow, Fault, Strike, Times, register
from tests.support.postgres_sessions import locked, no_room

_STORE: Final[LiteralString] = "SET LOCAL search_path = shardwheel_store; "
_SHARD_ROWS: Final[LiteralString] = _STORE + "SELECT shard FROM shards WHERE shard % 2 = 0 ORDER BY shard FOR UPDATE"
_SHARDS: Final[LiteralString] = _STORE + "LOCK TABLE shards IN ACCESS EXCLUSIVE MODE"
_JOBS: Final[tuple[LiteralString, ...]] = tuple(
    _STORE + f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    for table in ("jobs_0000", "jobs_0001", "jobs_0002", "jobs_0003")
)


def _for_some_seconds(draw: random.Random, times: Times) -> float:
    return draw.uniform(3.0, 8.0)


def _exhaust(cluster: Cluster, blow: Blow) -> AbstractContextManager[object]:
    return no_room(cluster.dsn)


def _lock_shard_rows(cluster: Cluster, blow: Blow) -> AbstractContextManager[object]:
    return locked(cluster.dsn, _SHARD_ROWS)


def _lock_shards(cluster: Cluster, blow: Blow) -> AbstractContextManager[object]:
    return locked(cluster.dsn, _SHARDS)


def _lock_jobs(cluster: Cluster, blow: Blow) -> AbstractContextManager[object]:
    return locked(cluster.dsn, blow.draw.choice(_JOBS))


def _held(obstacle: "Obstacle") -> Strike:
    """An obstacle that stands in the way while the blow lasts; a crash of PostgreSQL meanwhile clears it away."""

    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        stack = ExitStack()
        try:
            await asyncio.to_thread(stack.enter_context, obstacle(cluster, blow))
        except psycopg.OperationalError:
            yield []
            return
        try:
            yield ["postgres"]
        finally:
            await asyncio.to_thread(_clear, stack)

    return strike


def _clear(stack: ExitStack) -> None:
    try:
        stack.close()
    except psycopg.Error:
        return  # the sessions have ended with PostgreSQL


Obstacle = Callable[[Cluster, Blow], AbstractContextManager[object]]


def _fault(kind: str, obstacle: Obstacle) -> str:
    return register(Fault(for_all=True, kind=kind, strike=_held(obstacle), hold_s=_for_some_seconds)).kind


EXHAUST_CONNECTIONS: Final = _fault("exhaust_connections", _exhaust)
LOCK_SHARD_ROWS: Final = _fault("lock_shard_rows", _lock_shard_rows)
LOCK_SHARDS: Final = _fault("lock_shards", _lock_shards)
LOCK_JOBS: Final = _fault("lock_jobs", _lock_jobs)
