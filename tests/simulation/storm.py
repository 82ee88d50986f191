"""Faults and orders at random, and what has to be true once they are over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from shard_manager.errors import NotLeader, OrderRefused
from shard_manager.steering import (
    DrainNode,
    EvictNode,
    Given,
    MoveShard,
    Order,
    PauseRebalance,
    Rebalance,
    ResumeRebalance,
    UndrainNode,
)
from tests.simulation.world import NAMES, SHARDS, Process, World
from tests.unit.shard_manager.cluster import ms

FAULTS_PER_SCHEDULE = 6
HEALED_WITHIN_S = 6.0
STAYS_S = 0.9
LONGEST_PAUSE_S = 0.4
ORDER_LIMIT_S = 1.0


class Storm:
    """One schedule of faults on one cluster."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.struck: list[str] = []
        self.chance = world.chance
        self._background: list[asyncio.Task[None]] = []
        self._leaving: set[str] = set()

    async def rage(self, faults: int) -> None:
        """Strike so many times."""
        for _ in range(faults):
            name = self.chance.choice(NAMES)
            fault = self.chance.choice(FAULTS)
            if name not in self._leaving:
                self.struck.append(f"{fault.__name__.strip('_')} {name}")
                await fault(self, self.world.processes[name])
            self.world.work()
            await asyncio.sleep(self.chance.random() * LONGEST_PAUSE_S)

    async def heal(self) -> str:
        """End all faults; return what is not as it should be in time, and stays so, "" if everything is."""
        await self._calm()
        loop = asyncio.get_running_loop()
        until_s, since_s = loop.time() + HEALED_WITHIN_S, loop.time()
        while loop.time() < since_s + STAYS_S:
            await asyncio.sleep(0.1)
            if missing := self.world.unsettled():
                # What was asked for during the storm may come late: a session that ends, a step for balance.
                since_s = loop.time()
                if since_s >= until_s:
                    return f"not healed within {HEALED_WITHIN_S} s: {missing}"
                self.world.work()
        return ""

    async def end(self) -> None:
        """Kill everything."""
        for process in self.world.processes.values():
            await process.kill()

    async def _calm(self) -> None:
        if self._background:
            for name in NAMES:
                self.world.processes[name].link.going.set()
            await asyncio.gather(*self._background)
        for name in NAMES:
            process = self.world.processes[name]
            self.world.cluster.reconnect(name)
            process.link.loss = 0.0
            process.link.going.set()
            process.manager.set_healthy(True)
            process.host.fence_errors = process.host.fence_answers_lost = 0
            process.host.refuses_to_start, process.host.hangs_on_stop = set(), set()

    def later(self, work: Awaitable[None]) -> None:
        """Do something beside the storm."""

        async def run() -> None:
            await work

        self._background.append(asyncio.create_task(run()))

    async def restart_gracefully(self, process: Process) -> None:
        self._leaving.add(process.name)
        await process.leave()
        self.world.begin(process.name)
        self._leaving.discard(process.name)

    async def give(self, order: Order) -> None:
        """Give an order to whoever leads; it may be refused, or nobody may be there to take it."""
        leader = self.world.cluster.leader()
        if leader is None:
            return
        try:
            async with asyncio.timeout(ORDER_LIMIT_S):
                await self.world.processes[leader.member.node].manager.order(Given(order=order))
        except (OrderRefused, NotLeader, TimeoutError):
            return

    def order(self, node: str) -> Order:
        """Any order."""
        chance = self.chance
        shard, pin = chance.randrange(SHARDS), ms(chance.randrange(200, 1500)) if chance.random() < 0.5 else None
        orders: list[Order] = [
            DrainNode(node=node), UndrainNode(node=node), EvictNode(node=node), PauseRebalance(), ResumeRebalance(),
            Rebalance(), MoveShard(shard=shard, node=node, pin=pin),
        ]  # fmt: skip
        return chance.choice(orders)

    def pause_s(self) -> float:
        """How long a fault lasts: longer than a session now and then."""
        return self.chance.random() ** 2 * 2.0

    def one_shard(self) -> set[int]:
        return {self.chance.randrange(SHARDS)}


async def _session_expires(storm: Storm, process: Process) -> None:
    storm.world.cluster.expire(process.name)


async def _suspended(storm: Storm, process: Process) -> None:
    """Cut off from the coordinator: its session ends if that lasts."""
    storm.world.cluster.cut_off(process.name)
    asyncio.get_running_loop().call_later(storm.pause_s(), storm.world.cluster.reconnect, process.name)


async def _stalled(storm: Storm, process: Process) -> None:
    """What it asks of the coordinator arrives only later."""
    process.link.going.clear()
    asyncio.get_running_loop().call_later(storm.pause_s(), process.link.going.set)


async def _answers_lost(storm: Storm, process: Process) -> None:
    process.link.loss = 0.4
    asyncio.get_running_loop().call_later(storm.pause_s(), setattr, process.link, "loss", 0.0)


async def _coordinator_wiped(storm: Storm, process: Process) -> None:
    storm.world.cluster.wipe()


async def _database_away(storm: Storm, process: Process) -> None:
    process.host.fence_errors += 2


async def _fence_answer_lost(storm: Storm, process: Process) -> None:
    process.host.fence_answers_lost += 1


async def _does_not_start(storm: Storm, process: Process) -> None:
    process.host.refuses_to_start = storm.one_shard()


async def _hangs_on_stop(storm: Storm, process: Process) -> None:
    process.host.hangs_on_stop = storm.one_shard()


async def _killed(storm: Storm, process: Process) -> None:
    await process.kill()
    await asyncio.sleep(storm.pause_s() / 4)
    storm.world.begin(process.name, knows_predecessors=storm.chance.random() < 0.5)


async def _terminated(storm: Storm, process: Process) -> None:
    storm.later(storm.restart_gracefully(process))


async def _unhealthy(storm: Storm, process: Process) -> None:
    process.manager.set_healthy(False)
    asyncio.get_running_loop().call_later(storm.pause_s(), process.manager.set_healthy, True)


async def _ordered(storm: Storm, process: Process) -> None:
    storm.later(storm.give(storm.order(process.name)))


Fault = Callable[[Storm, Process], Awaitable[None]]

FAULTS: Final[tuple[Fault, ...]] = (
    _session_expires, _suspended, _stalled, _answers_lost, _coordinator_wiped, _database_away, _fence_answer_lost,
    _does_not_start, _hangs_on_stop, _killed, _terminated, _unhealthy, _ordered, _ordered, _ordered,
)  # fmt: skip
