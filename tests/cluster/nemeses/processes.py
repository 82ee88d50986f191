"""Faults of nodes and workers as processes: killed, stopped, asked to stop."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import (
    Blow,
    Fault,
    Strike,
    around_a_session,
    beyond_a_lease,
    beyond_a_session,
    register,
)
from tests.cluster.processes import ClusterProcess
from tests.support.waiting import NotReached

# A victim may be stopped, or cut off from PostgreSQL, while it is asked to end.
_ENDED_S: Final = 40.0
_LEADER_S: Final = 10.0


async def _a_node(cluster: Cluster, blow: Blow) -> ClusterProcess | None:
    return _one_of(cluster.nodes, blow)


async def _a_worker(cluster: Cluster, blow: Blow) -> ClusterProcess | None:
    return _one_of(cluster.workers, blow)


async def _the_leader(cluster: Cluster, blow: Blow) -> ClusterProcess | None:
    """The node that leads; there may be none for a while."""
    deadline = time.monotonic() + _LEADER_S
    while time.monotonic() < deadline:
        leader = await asyncio.to_thread(cluster.leader)
        if leader is not None and not leader.leaving:
            return leader
        await asyncio.sleep(0.5)
    return None


def _one_of(group: Sequence[ClusterProcess], blow: Blow) -> ClusterProcess | None:
    """Choose among those that are alive and have not been asked to stop."""
    alive = [process for process in group if process.running and not process.leaving]
    return alive[blow.victim % len(alive)] if alive else None


Choose = Callable[[Cluster, Blow], Awaitable[ClusterProcess | None]]


def _kill(choose: Choose) -> Strike:
    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        victim = await choose(cluster, blow)
        if victim is None:
            yield []
            return
        victim.kill()
        try:
            yield [victim.name]
        finally:
            victim.start()

    return strike


def _stop(choose: Choose) -> Strike:
    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        victim = await choose(cluster, blow)
        if victim is None:
            yield []
            return
        pid = victim.pause()
        try:
            yield [victim.name]
        finally:
            victim.resume(pid)

    return strike


def _terminate(choose: Choose) -> Strike:
    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        victim = await choose(cluster, blow)
        if victim is None:
            yield []
            return
        try:
            try:
                await victim.terminate(_ENDED_S)
            except NotReached:
                # It waits for what is broken as well; a service manager has no more patience either.
                victim.kill()
            yield [victim.name]
        finally:
            victim.start()

    return strike


@asynccontextmanager
async def _kill_all_nodes(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    victims = [node for node in cluster.nodes if node.running]
    for node in victims:
        node.kill()
    try:
        yield [node.name for node in victims]
    finally:
        for node in cluster.nodes:
            node.start()


KILL_NODE: Final = register(Fault(kind="kill_node", strike=_kill(_a_node))).kind
KILL_LEADER: Final = register(Fault(kind="kill_leader", strike=_kill(_the_leader))).kind
KILL_WORKER: Final = register(Fault(kind="kill_worker", strike=_kill(_a_worker))).kind
TERMINATE_NODE: Final = register(Fault(kind="terminate_node", strike=_terminate(_a_node))).kind
TERMINATE_LEADER: Final = register(Fault(kind="terminate_leader", strike=_terminate(_the_leader))).kind
TERMINATE_WORKER: Final = register(Fault(kind="terminate_worker", strike=_terminate(_a_worker))).kind
STOP_NODE: Final = register(Fault(kind="stop_node", strike=_stop(_a_node), hold_s=around_a_session)).kind
STOP_LEADER: Final = register(Fault(kind="stop_leader", strike=_stop(_the_leader), hold_s=beyond_a_session)).kind
STOP_WORKER: Final = register(Fault(kind="stop_worker", strike=_stop(_a_worker), hold_s=beyond_a_lease)).kind
NODES_AWAY: Final = register(Fault(for_all=True, kind="nodes_away", strike=_kill_all_nodes, hold_s=beyond_a_lease)).kind
