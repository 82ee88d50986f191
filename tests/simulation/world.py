"""A cluster in one event loop on virtual time: real managers, the coordinator in memory, the fence, and processes that
are killed and started again."""

import asyncio
import random
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from shard_manager.assignment import can_serve
from shard_manager.coordinator import Member
from shard_manager.events import ManagerEvent
from shard_manager.manager import ShardManager
from shard_manager.memory import MemoryCluster
from tests.simulation.fence import FenceTable, Host
from tests.simulation.link import Link
from tests.unit.shard_manager.cluster import TIMINGS, ms

NAMES = ("a", "b", "c")
SHARDS = 4
MAX_MOVES = 1
SLOWEST_HOST_S = 0.6
LATEST_STATEMENT_S = 1.5
QUICK = replace(
    TIMINGS, session_ttl=ms(1000), heartbeat=ms(300), poll=ms(400), handoff_poll=ms(100), reread=ms(800),
    settle=ms(100), wave=ms(50), loss_guard=ms(100), backoff_initial=ms(20), backoff_max=ms(200), stop_call=ms(200),
    fence_call=ms(1000), drain_handover=ms(500), leave_limit=ms(300), drain_limit=ms(2000),
)  # fmt: skip
START = datetime(2030, 1, 1, tzinfo=UTC)


class Process:
    """One process of a node: its manager, what it serves, its connection."""

    def __init__(self, world: "World", name: str, incarnation: int, replaces: Collection[int]) -> None:
        self.name = name
        self.member = Member(node=name, incarnation=incarnation)
        self.host = Host(world.table, incarnation, world.host_delay_s)
        self.link = Link(world.cluster, world.chance, self.host, max_moves=MAX_MOVES, new_for=QUICK.settle)
        self.manager = ShardManager(
            self.link,
            self.host,
            member=self.member,
            shards=SHARDS,
            replaces=replaces,
            timings=QUICK,
            observer=lambda event: world.told.append((name, event)),
            max_moves=MAX_MOVES,
            draw=world.chance,
            last_owners=world.last_owners,
            clock=lambda: START + ms(1000 * asyncio.get_running_loop().time()),
        )
        self.host.fenced = self.manager.fenced
        self.task = asyncio.create_task(self.manager.run(), name=f"node-{name}")

    async def kill(self) -> None:
        """End it at once: no release, no goodbye. Statements that are under way take effect all the same."""
        self.task.cancel()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
        self.check_ended()

    async def leave(self) -> None:
        """Drain, as on SIGTERM."""
        await self.manager.drain()
        await self.task
        self.check_ended()

    def check_ended(self) -> None:
        if self.host.running:
            self.host.table.wrong.append(f"{self.name} has ended and still serves {sorted(self.host.running)}")


class World:
    """Everything there is, reproducible from the seed of `chance`."""

    def __init__(self, chance: random.Random, *, conditional: bool = True) -> None:
        self.chance = chance
        self.cluster = MemoryCluster(lambda: asyncio.get_running_loop().time())
        self.table = FenceTable(conditional=conditional)
        self.processes: dict[str, Process] = {}
        self.told: list[tuple[str, ManagerEvent]] = []
        self._incarnations = 0
        self._names: dict[int, str] = {}

    def host_delay_s(self) -> float:
        """How long a call to a host takes: hardly ever long."""
        return self.chance.random() ** 8 * SLOWEST_HOST_S

    async def last_owners(self) -> dict[int, str]:
        """Shard to node, as the fences have it."""
        return {shard: self._names[incarnation] for shard, incarnation in self.table.last_owners().items()}

    def begin(self, name: str, *, knows_predecessors: bool = True) -> None:
        """Start a node's process; `knows_predecessors`: it may take over their sessions, which it knows to be dead."""
        dead = range(1, self._incarnations + 1) if knows_predecessors else ()
        self._incarnations += 1
        self._names[self._incarnations] = name
        self.processes[name] = Process(self, name, self._incarnations, dead)

    def work(self) -> None:
        """Let every host send statements, some of which take effect only much later."""
        for process in self.processes.values():
            process.host.work(lambda: self.chance.random() ** 4 * LATEST_STATEMENT_S)

    def unsettled(self) -> str:
        """What is missing for every shard to be served by its planned owner, at the epoch of its fence; "": nothing."""
        plan, members = self.cluster.plan, self.cluster.members()
        wanted = {one.member for one in self.processes.values()}
        if plan is None or set(members.values()) != wanted:
            return f"present: {list(members.values())}"
        able = can_serve(members.values(), plan.orders)
        serving = {
            (shard, name, epoch) for name, one in self.processes.items() for shard, epoch in one.host.running.items()
        }
        planned = {(shard, name, self._epoch(shard)) for shard, name in plan.owners.items()}
        if serving != planned or len(planned) != SHARDS:
            return f"planned {sorted(planned)}, served {sorted(serving)}"
        if any(dict(one.manager.owned) != one.host.running for one in self.processes.values()):
            return "managers and hosts differ"
        counts = {name: len(plan.shards_of(name)) for name in NAMES}
        if any(counts[name] for name in NAMES if name not in able):
            return f"{counts}, though only {able} can serve"
        if plan.orders.pins:
            return f"pins that end soon: {plan.orders.pins}"
        if not plan.orders.paused and max(counts[name] for name in able) - min(counts[name] for name in able) > 1:
            return f"out of balance: {counts}"
        return ""

    def _epoch(self, shard: int) -> int:
        row = self.table.rows.get(shard)
        return row.epoch if row is not None else 0
