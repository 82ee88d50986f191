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
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from tests.unit.shard_manager.cluster import TIMINGS, Node, Site, ms
from tests.unit.shard_manager.virtual_time import virtual_time

T = TypeVar("T")
SHARDS = 16
NAMES = ("a", "b", "c")
LATENCY_S = 0.002
FAST = replace(TIMINGS, session_ttl=ms(500), heartbeat=ms(50), poll=ms(10), handoff_poll=ms(5), reread=ms(50),
               settle=ms(20), loss_guard=ms(20), backoff_max=ms(20), stop_call=ms(50))  # fmt: skip


class Flaky:
    """A coordinator whose calls fail at random, half of them only after they have been carried out."""

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

    async def wait_change(self, timeout_s: float) -> None:
        await self._inner.wait_change(timeout_s)

    def wake(self) -> None:
        self._inner.wake()


async def disturb(site: Site, nodes: dict[str, Node], chance: random.Random) -> None:
    """One random fault."""
    name = chance.choice(NAMES)
    node, host = nodes[name], site.hosts[name]
    match chance.randrange(8):
        case 0:
            site.cluster.expire(name)
        case 1:
            site.cluster.cut_off(name)
        case 2:
            site.cluster.reconnect(name)
        case 3:
            host.fence_errors.append(RuntimeError("database away"))
        case 4:
            node.manager.fenced(chance.randrange(SHARDS))
        case 5:
            host.refuse_to_start = {chance.randrange(SHARDS)}
        case 6:
            host.hang_on_stop = {(chance.randrange(SHARDS), True)}
        case _:
            node.manager.set_healthy(chance.random() < 0.5)


@pytest.mark.parametrize("seed", range(3))
@virtual_time
async def test_random_faults_leave_nothing_behind(seed: int) -> None:
    await run(seed, disturbances=40)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
@virtual_time
async def test_random_faults_leave_nothing_behind_for_long(seed: int) -> None:
    await run(seed, disturbances=200)


async def run(seed: int, disturbances: int) -> None:
    chance = random.Random(seed)
    site = Site()
    coordinators = {name: Flaky(site.cluster, chance) for name in NAMES}
    nodes = {
        name: site.node(name, coordinator=coordinators[name], shards=SHARDS, timings=FAST, max_moves=4, draw=chance)
        for name in NAMES
    }
    async with nodes["a"] as a, nodes["b"], nodes["c"]:
        for _ in range(disturbances):
            await disturb(site, nodes, chance)
            await asyncio.sleep(chance.random() * 0.02)
        for name in NAMES:
            coordinators[name].faults = False
            site.cluster.reconnect(name)
            nodes[name].manager.set_healthy(True)
            host = site.hosts[name]
            host.fence_errors.clear()
            host.refuse_to_start, host.hang_on_stop = set(), set()
        await a.events.until(lambda: settled(site, nodes), f"calm after seed {seed}")
    site.check()


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
