"""Coordinators under test, each with the means to let time pass and sessions expire without waiting."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Protocol

import psycopg

from shard_manager.coordinator import Coordinator, Member
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from shard_manager.postgres import PostgresCoordinator
from shard_manager.zookeeper import LinkState, ZookeeperCoordinator, ZookeeperSettings
from tests.support.waiting import eventually
from tests.support.zookeeper import end_session

_paths = itertools.count(1)


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


class Generations:
    """The sequence that generations are drawn from. `unreachable` makes it fail as an absent database would."""

    def __init__(self) -> None:
        self.newest = 0
        self.unreachable: Exception | None = None

    async def draw(self, known: int) -> int:
        if self.unreachable is not None:
            raise self.unreachable
        if known == 0 or known < self.newest:
            self.newest += 1
        return self.newest


class TimedCoordinator(ZookeeperCoordinator):
    """Knows when its session should be over by the bench's clock."""

    ends_s = float("inf")
    ttl = timedelta(0)

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        await super().join(member, ttl=ttl, replaces=replaces)
        self.ttl = ttl
        self._lives_on()

    async def renew(self, member: Member) -> None:
        await super().renew(member)
        self._lives_on()

    async def leave(self) -> None:
        await super().leave()
        self.ends_s = float("inf")

    def _lives_on(self) -> None:
        self.ends_s = self._clock() + self.ttl.total_seconds()


class ZookeeperBench:
    """A tree of its own on a real server. Time passes for the renewals; ZooKeeper's own clock is not waited for."""

    def __init__(self, hosts: str, *, chroot: str = "") -> None:
        self.hosts = hosts
        self.chroot = chroot or f"/t{os.getpid()}/{next(_paths)}"
        self.generations = Generations()
        self.coordinators: list[TimedCoordinator] = []
        self._passed_s = 0.0

    def settings(self, **more: object) -> ZookeeperSettings:
        settings = {"hosts": tuple(self.hosts.split(",")), "chroot": self.chroot, **more}
        build: Callable[..., ZookeeperSettings] = ZookeeperSettings
        return build(**settings)

    def coordinator(
        self, *, settings: ZookeeperSettings | None = None, cluster_id: str = "ours", deadline_s: float = 3.0
    ) -> TimedCoordinator:
        self.coordinators.append(
            TimedCoordinator(
                settings or self.settings(),
                cluster_id=cluster_id,
                draw_generation=self.generations.draw,
                deadline=timedelta(seconds=deadline_s),
                clock=lambda: time.monotonic() + self._passed_s,
            )
        )
        return self.coordinators[-1]

    async def pass_time(self, seconds: float) -> None:
        self._passed_s += seconds
        now_s = time.monotonic() + self._passed_s
        for coordinator in self.coordinators:
            if coordinator.ends_s <= now_s:
                await self._end(coordinator)

    async def expire(self, node: str) -> None:
        [coordinator] = [one for one in self.coordinators if one.node == node and one.ends_s < float("inf")]
        await self._end(coordinator)
        await eventually(lambda: coordinator.state is LinkState.LOST, what="the end of the session being noticed")

    async def close(self) -> None:
        for coordinator in self.coordinators:
            await coordinator.close()

    async def _end(self, coordinator: TimedCoordinator) -> None:
        coordinator.ends_s = float("inf")
        assert coordinator.session is not None
        await asyncio.to_thread(end_session, self.hosts, coordinator.session)
