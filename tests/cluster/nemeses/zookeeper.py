"""Faults of ZooKeeper: restarted, away, hanging, without a quorum, without its leader."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import (
    Blow,
    Fault,
    Need,
    Strike,
    Times,
    around_a_session,
    beyond_a_session,
    briefly,
    register,
)
from tests.cluster.zookeeper import ZookeeperSite
from tests.support.stopping import stop_process
from tests.support.zookeeper import ZookeeperServer

_ONE: Final = frozenset({Need.ZOOKEEPER})
_THREE: Final = frozenset({Need.ENSEMBLE})
Choose = Callable[[ZookeeperSite, random.Random], list[ZookeeperServer]]


def _all(site: ZookeeperSite, draw: random.Random) -> list[ZookeeperServer]:
    return site.servers


def _any(site: ZookeeperSite, draw: random.Random) -> list[ZookeeperServer]:
    return [draw.choice(site.servers)]


def _most(site: ZookeeperSite, draw: random.Random) -> list[ZookeeperServer]:
    return draw.sample(site.servers, len(site.servers) // 2 + 1)


def _leader(site: ZookeeperSite, draw: random.Random) -> list[ZookeeperServer]:
    leader = site.leader()
    return [] if leader is None else [leader]


def _kill(victim: ZookeeperServer) -> None:
    victim.kill()


def _stop_in_order(victim: ZookeeperServer) -> None:
    victim.stop()


def _down(choose: Choose, end: Callable[[ZookeeperServer], None]) -> Strike:
    """Take servers down, and start them again."""

    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        async with _whole(cluster) as site:
            victims = await asyncio.to_thread(choose, site, blow.draw) if site is not None else []
            try:
                for victim in victims:
                    await asyncio.to_thread(end, victim)
                yield _names(victims)
            finally:
                if site is not None:
                    await asyncio.to_thread(site.start)

    return strike


@asynccontextmanager
async def _hang(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    """Stop all servers (SIGSTOP): when they go on, every session is over at once."""
    async with _whole(cluster) as site:
        victims = site.servers if site is not None else []
        try:
            for victim in victims:
                stop_process(victim.pid)
            yield _names(victims)
        finally:
            for victim in victims:
                os.kill(victim.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def _whole(cluster: Cluster) -> AsyncIterator[ZookeeperSite | None]:
    """Wait for the turn; None if there is nothing to strike at."""
    site = cluster.zookeeper
    assert site is not None
    async with site.lock:
        yield site if await asyncio.to_thread(lambda: site.is_whole) else None


def _names(victims: Sequence[ZookeeperServer]) -> list[str]:
    return [f"zookeeper:{victim.port}" for victim in victims]


def _register(
    kind: str,
    strike: Strike,
    hold_s: Callable[[random.Random, Times], float],
    needs: frozenset[Need],
    *,
    for_all: bool = True,
) -> str:
    return register(Fault(kind=kind, strike=strike, hold_s=hold_s, needs=needs, for_all=for_all)).kind


def _for_a_minute(draw: random.Random, times: Times) -> float:
    return 60.0


RESTART: Final = _register("restart_zookeeper", _down(_all, _stop_in_order), briefly, _ONE)
KILL: Final = _register("kill_zookeeper", _down(_all, _kill), briefly, _ONE)
AWAY: Final = _register("zookeeper_away", _down(_all, _kill), beyond_a_session, _ONE)
LONG_AWAY: Final = _register("zookeeper_away_for_a_minute", _down(_all, _kill), _for_a_minute, _ONE)
HANG: Final = _register("zookeeper_hangs", _hang, beyond_a_session, _ONE)
ONE_SERVER: Final = _register("kill_zookeeper_server", _down(_any, _kill), around_a_session, _THREE, for_all=False)
QUORUM: Final = _register("zookeeper_without_quorum", _down(_most, _kill), beyond_a_session, _THREE)
LEADER: Final = _register("kill_zookeeper_leader", _down(_leader, _kill), around_a_session, _THREE, for_all=False)
