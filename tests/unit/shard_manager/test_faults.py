"""Nodes under random faults: whatever happened, once it is over every shard has one owner that serves it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar

import pytest

from shard_manager.coordinator import Lease, Member, Plan, View
from shard_manager.errors import CoordinatorUnavailable
from shard_manager.events import ManagerEvent
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from tests.unit.shard_manager.cluster import TIMINGS, Node, Site, ms
from tests.unit.shard_manager.virtual_time import virtual_time

T = TypeVar("T")
SHARDS = 16
NAMES = ("a", "b", "c")
LATENCY_S = 0.002
SLOWEST_HOST_S = 0.2
FAST = replace(TIMINGS, session_ttl=ms(500), heartbeat=ms(50), poll=ms(10), handoff_poll=ms(5), reread=ms(50),
               settle=ms(20), loss_guard=ms(20), backoff_max=ms(20), stop_call=ms(50))  # fmt: skip


class Flaky:
    """A coordinator whose calls fail at random, half of them only after they have been carried out."""

    tells_at_once = True

    def __init__(self, cluster: MemoryCluster, chance: random.Random) -> None:
        self._inner = MemoryCoordinator(cluster)
        self._chance = chance
        self.faults = True

    async def _maybe(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        draw = self._chance.random() if self.faults else 1.0
        await asyncio.sleep(self._chance.random() * LATENCY_S)
        if draw < 0.1:
            raise CoordinatorUnavailable(operation, "request lost")
        result = await call()
        await asyncio.sleep(self._chance.random() * LATENCY_S)
        if draw < 0.2:
            raise CoordinatorUnavailable(operation, "answer lost")
        return result

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        await self._maybe("join", lambda: self._inner.join(member, ttl=ttl, replaces=replaces))

    async def renew(self, member: Member) -> None:
        await self._maybe("renew", lambda: self._inner.renew(member))

    async def leave(self) -> None:
        await self._maybe("leave", self._inner.leave)

    async def close(self) -> None:
        await self._inner.close()

    async def view(self, *, fresh: bool = False) -> View:
        return await self._maybe("view", lambda: self._inner.view(fresh=fresh))

    async def write_plan(self, plan: Plan) -> None:
        await self._maybe("write_plan", lambda: self._inner.write_plan(plan))

    async def acquire(self, shards: Collection[int]) -> Collection[Lease]:
        return await self._maybe("acquire", lambda: self._inner.acquire(shards))

    async def release(self, leases: Collection[Lease]) -> None:
        await self._maybe("release", lambda: self._inner.release(leases))

    async def evict(self, node: str, session: int) -> bool:
        return await self._maybe("evict", lambda: self._inner.evict(node, session))

    async def wait_change(self, timeout_s: float) -> None:
        await self._inner.wait_change(timeout_s)

    def wake(self) -> None:
        self._inner.wake()


class Storm:
    """Three nodes, and faults that hit them at random."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.site = Site()
        self.coordinators: dict[str, Flaky] = {}
        self.nodes: dict[str, Node] = {}
        self.told: list[ManagerEvent] = []
        self._incarnations = 0

    def begin(self, name: str, replaces: Collection[int] = ()) -> None:
        """Start a node, or start it anew."""
        self._incarnations += 1
        self.coordinators[name] = Flaky(self.site.cluster, self._chance)
        self.nodes[name] = self.site.node(
            name, coordinator=self.coordinators[name], incarnation=self._incarnations, replaces=replaces,
            shards=SHARDS, timings=FAST, max_moves=4, draw=self._chance,
        )  # fmt: skip
        self.site.hosts[name].delay_s = lambda: self._chance.random() ** 8 * SLOWEST_HOST_S
        self.nodes[name].start()

    async def end(self, name: str) -> None:
        """Kill a node, or see to it that a drained one has ended well."""
        await self.nodes[name].kill()
        self.told.extend(self.nodes[name].events.all)
        assert self.site.hosts[name].running == {}
        assert self.site.hosts[name].wrong == []

    async def disturb(self) -> None:
        """One random fault."""
        chance, cluster, name = self._chance, self.site.cluster, self._chance.choice(NAMES)
        node, host = self.nodes[name], self.site.hosts[name]
        match chance.randrange(18):
            case 0 | 1:
                cluster.expire(name)
            case 2 | 3:
                cluster.cut_off(name)
            case 4 | 5:
                cluster.reconnect(name)
            case 6 | 7:
                host.fence_errors.append(RuntimeError("database away"))
            case 8 | 9:
                node.manager.fenced(chance.randrange(SHARDS))
            case 10 | 11:
                host.refuse_to_start = {chance.randrange(SHARDS)}
            case 12 | 13:
                host.hang_on_stop = {(chance.randrange(SHARDS), True)}
            case 14:
                known = self._incarnations if chance.random() < 0.5 else 0
                await self.end(name)
                self.begin(name, replaces=range(1, known + 1))
            case 15:
                await node.manager.drain()
                await self.end(name)
                self.begin(name)
            case _:
                node.manager.set_healthy(chance.random() < 0.5)

    def calm(self) -> None:
        """No faults from now on."""
        for name in NAMES:
            self.coordinators[name].faults = False
            self.site.cluster.reconnect(name)
            self.nodes[name].manager.set_healthy(True)
            host = self.site.hosts[name]
            host.fence_errors.clear()
            host.refuse_to_start, host.hang_on_stop = set(), set()


@pytest.mark.parametrize("seed", range(5))
@virtual_time
async def test_random_faults_leave_nothing_behind(seed: int) -> None:
    await run(seed, disturbances=40)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
@virtual_time
async def test_random_faults_leave_nothing_behind_for_long(seed: int) -> None:
    await run(seed, disturbances=200)


def test_the_same_seed_does_the_same() -> None:
    first: list[str] = []
    second: list[str] = []
    for told in (first, second):
        virtual_time(run)(7, 40, told)
    assert len(first) > 100
    assert first == second


async def run(seed: int, disturbances: int, told: list[str] | None = None) -> None:
    chance, storm = random.Random(seed), Storm(seed)
    for name in NAMES:
        storm.begin(name)
    for _ in range(disturbances):
        await storm.disturb()
        await asyncio.sleep(chance.random() * 0.02)
    storm.calm()
    await storm.nodes["a"].events.until(lambda: settled(storm.site, storm.nodes), f"calm after seed {seed}")
    for name in NAMES:
        await storm.end(name)
    if told is not None:
        told.extend(map(repr, storm.told))


def settled(site: Site, nodes: dict[str, Node]) -> bool:
    """Every shard is served by one node, at the epoch of its fence, and the nodes are balanced."""
    owned = {name: dict(node.manager.owned) for name, node in nodes.items()}
    everything = {shard: epoch for epochs in owned.values() for shard, epoch in epochs.items()}
    return (
        sorted(shard for epochs in owned.values() for shard in epochs) == list(range(SHARDS))
        and everything == site.fences.epochs
        and all(site.hosts[name].running == owned[name] for name in NAMES)
        and sorted(len(epochs) for epochs in owned.values()) == [5, 5, 6]
    )
