"""Coordinators under test, each with the means to let time pass and sessions expire without waiting."""

from typing import Protocol

import psycopg

from shard_manager.coordinator import Coordinator
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from shard_manager.postgres import PostgresCoordinator


class Bench(Protocol):
    """One cluster of some kind."""

    def coordinator(self) -> Coordinator:
        """Another node's coordinator of this cluster."""

    async def pass_time(self, seconds: float) -> None:
        """Bring every session this much nearer to its end."""

    async def expire(self, node: str) -> None:
        """Let the session of `node` be over."""

    async def close(self) -> None:
        """Close all coordinators."""


class MemoryBench:
    def __init__(self) -> None:
        self._now_s = 1000.0
        self.cluster = MemoryCluster(lambda: self._now_s)
        self._coordinators: list[MemoryCoordinator] = []

    def coordinator(self) -> MemoryCoordinator:
        self._coordinators.append(MemoryCoordinator(self.cluster))
        return self._coordinators[-1]

    async def pass_time(self, seconds: float) -> None:
        self._now_s += seconds

    async def expire(self, node: str) -> None:
        self.cluster.expire(node)

    async def close(self) -> None:
        for coordinator in self._coordinators:
            await coordinator.close()


class PostgresBench:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._coordinators: list[PostgresCoordinator] = []

    def coordinator(self) -> PostgresCoordinator:
        self._coordinators.append(PostgresCoordinator(self.dsn))
        return self._coordinators[-1]

    async def pass_time(self, seconds: float) -> None:
        await self.run("UPDATE coord_sessions SET expires_at = expires_at - %s * interval '1 s'", seconds)

    async def expire(self, node: str) -> None:
        await self.run("UPDATE coord_sessions SET expires_at = clock_timestamp() WHERE node = %s", node)

    async def close(self) -> None:
        for coordinator in self._coordinators:
            await coordinator.close()

    async def run(self, statement: str, *arguments: object) -> list[tuple[object, ...]]:
        """Run a statement beside the coordinators; returns its rows, if it has any."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode(), arguments or None)
            return await cursor.fetchall() if cursor.description else []
