"""The nemesis: breaks a cluster by a plan that follows from a seed."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import psycopg

from tests.cluster.cluster import Cluster
from tests.cluster.history import Fault
from tests.cluster.processes import ClusterProcess
from tests.support.waiting import eventually

MIXED: Final = (
    Fault.KILL_NODE,
    Fault.KILL_WORKER,
    Fault.KILL_POSTGRES,
    Fault.STOP_NODE,
    Fault.STOP_WORKER,
    Fault.TERMINATE_BACKENDS,
)

EVERYTHING: Final = (*MIXED, Fault.TERMINATE_NODE, Fault.TERMINATE_WORKER)

_EVERY_S: Final = 3.2
_FIRST_S: Final = 1.5
# A victim may be stopped while it is asked to end.
_ENDED_S: Final = 40.0

_TERMINATE: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One planned fault."""

    at_s: float
    """After the start of the load."""
    fault: Fault
    victim: int
    """Which of several processes: taken modulo their number."""
    hold_s: float
    """How long the victim stays dead or stopped."""


def plan(seed: int, seconds: float, faults: Sequence[Fault], *, lease_s: float) -> list[Blow]:
    """Return blows for `seconds` of load: every fault at least once, then at random, in a random order.

    Stops of workers outlast their lease; those of nodes may or may not. Every victim that is killed or stopped is back
    when the load ends. The same arguments give the same plan.
    """
    draw = random.Random(seed)
    count = max(len(faults), int((seconds - _FIRST_S) / _EVERY_S))
    order = [*faults, *(draw.choice(faults) for _ in range(count - len(faults)))]
    draw.shuffle(order)
    step = (seconds - _FIRST_S) / count
    blows = []
    for number, fault in enumerate(order):
        hold_s = _hold_s(draw, fault, lease_s)
        at_s = _FIRST_S + number * step + draw.uniform(0.0, 0.5 * step)
        at_s = max(0.0, min(at_s, seconds - hold_s))
        blows.append(Blow(at_s=round(at_s, 3), fault=fault, victim=draw.randrange(1000), hold_s=round(hold_s, 3)))
    return sorted(blows, key=lambda blow: blow.at_s)


def _hold_s(draw: random.Random, fault: Fault, lease_s: float) -> float:
    match fault:
        case Fault.STOP_WORKER:
            return lease_s + draw.uniform(0.5, 2.5)
        case Fault.STOP_NODE:
            return draw.uniform(1.0, lease_s + 2.5)
        case Fault.POSTGRES_AWAY | Fault.NODES_AWAY:
            return lease_s + draw.uniform(1.0, 3.0)
        case _:
            return draw.uniform(0.0, 2.0)


class Nemesis:
    """Carries out a plan. Blows may overlap; each brings its victim back by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._terminated: set[int] = set()

    async def run(self, blows: Sequence[Blow]) -> None:
        """Strike at the planned times, counted from now; return when every victim is back."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for blow in blows:
                await asyncio.sleep(max(0.0, began + blow.at_s - asyncio.get_running_loop().time()))
                group.create_task(self.strike(blow))

    async def strike(self, blow: Blow) -> None:
        """Strike once, and bring the victim back after its time."""
        cluster = self._cluster
        match blow.fault:
            case Fault.KILL_NODE:
                await self._kill(blow, _chosen(cluster.nodes, blow))
            case Fault.KILL_WORKER:
                await self._kill(blow, _chosen(cluster.workers, blow))
            case Fault.TERMINATE_NODE:
                await self._terminate(blow, _chosen(cluster.nodes, blow))
            case Fault.TERMINATE_WORKER:
                await self._terminate(blow, _chosen(cluster.workers, blow))
            case Fault.STOP_NODE:
                await self._stop(blow, _chosen(cluster.nodes, blow))
            case Fault.STOP_WORKER:
                await self._stop(blow, _chosen(cluster.workers, blow))
            case Fault.KILL_POSTGRES | Fault.POSTGRES_AWAY:
                await self._kill_postgres(blow)
            case Fault.NODES_AWAY:
                await self._kill_all_nodes(blow)
            case Fault.TERMINATE_BACKENDS:
                await self._terminate_backends(blow)
            case _:
                assert_never(blow.fault)

    async def _kill(self, blow: Blow, victim: ClusterProcess) -> None:
        if not victim.running:
            return
        victim.kill()
        self._note(blow, victim.name)
        await asyncio.sleep(blow.hold_s)
        victim.start()

    async def _terminate(self, blow: Blow, victim: ClusterProcess) -> None:
        # A second signal would make it exit at once.
        if not victim.running or victim.pid in self._terminated:
            return
        self._terminated.add(victim.pid)
        self._note(blow, victim.name)
        await victim.terminate(_ENDED_S)
        await asyncio.sleep(blow.hold_s)
        victim.start()

    async def _kill_all_nodes(self, blow: Blow) -> None:
        for node in self._cluster.nodes:
            if node.running:
                node.kill()
                self._note(blow, node.name)
        await asyncio.sleep(blow.hold_s)
        for node in self._cluster.nodes:
            node.start()

    async def _stop(self, blow: Blow, victim: ClusterProcess) -> None:
        if not victim.running:
            return
        pid = victim.pause()
        self._note(blow, victim.name)
        await asyncio.sleep(blow.hold_s)
        victim.resume(pid)

    async def _kill_postgres(self, blow: Blow) -> None:
        cluster = self._cluster
        async with cluster.postgres_lock:
            if cluster.postgres.running:
                await asyncio.to_thread(cluster.postgres.kill9)
                self._note(blow, "postgres")
                await asyncio.sleep(blow.hold_s)
        await cluster.restore_postgres()

    async def _terminate_backends(self, blow: Blow) -> None:
        # PostgreSQL may be down, or the nodes may have no connection to it just now.
        await eventually(self._terminated_some, timeout_s=10.0, what="a back end to terminate")
        self._note(blow, "postgres")

    async def _terminated_some(self) -> bool:
        async with self._cluster.postgres_lock:
            return await asyncio.to_thread(_terminate_all, self._cluster.dsn) > 0

    def _note(self, blow: Blow, victim: str) -> None:
        self._cluster.journal.write("strike", fault=blow.fault.value, process=victim)


def _chosen(group: Sequence[ClusterProcess], blow: Blow) -> ClusterProcess:
    return group[blow.victim % len(group)]


def _terminate_all(dsn: str) -> int:
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=2) as connection:
            return len(connection.execute(_TERMINATE).fetchall())
    except psycopg.OperationalError:
        return 0
