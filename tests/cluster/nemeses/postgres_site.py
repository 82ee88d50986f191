"""Faults of what PostgreSQL stands on: the server itself is lost for good, its clock jumps, its disk is full."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import Blow, Fault, Need, Strike, Times, register
from tests.cluster.nemeses.postgres import POSTGRES

JUMP_S: Final = 300.0


@asynccontextmanager
async def _failover(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    """Lose the primary for good, and have the standby promoted; the next standby is made at the end."""
    pair = cluster.site.pair
    async with cluster.postgres_lock:
        if pair is None or not cluster.postgres.running or not await asyncio.to_thread(lambda: pair.in_sync):
            yield []
            return
        await asyncio.to_thread(pair.failover)
        try:
            yield [POSTGRES]
        finally:
            await asyncio.to_thread(pair.rebuild)


@asynccontextmanager
async def _standby_away(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    """Kill the standby: no commit is acknowledged until it is back."""
    pair = cluster.site.pair
    async with cluster.postgres_lock:
        standby = pair.standby if pair is not None else None
        if standby is None or not standby.running:
            yield []
            return
        await asyncio.to_thread(standby.kill9)
        try:
            yield ["standby"]
        finally:
            await cluster.start_postgres()


def _jump(by_s: float, *, back: bool) -> Strike:
    """Move PostgreSQL's clock, for good or for a while."""

    @asynccontextmanager
    async def strike(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
        clock = cluster.site.clock
        if clock is None:
            yield []
            return
        cluster.move_clock(by_s)
        try:
            yield [POSTGRES]
        finally:
            if back:
                cluster.move_clock(-by_s)

    return strike


@asynccontextmanager
async def _fill_disk(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    """Leave no room on the disk. PostgreSQL goes down if it cannot write its log; it is up again in the end."""
    balloon = cluster.site.balloon
    async with cluster.postgres_lock:
        if balloon is None:
            yield []
            return
        try:
            await asyncio.to_thread(balloon.blow_up)
            yield [POSTGRES]
        finally:
            balloon.burst()
            await cluster.start_postgres()


def _for_some_seconds(draw: random.Random, times: Times) -> float:
    return draw.uniform(2.0, 6.0)


FAILOVER: Final = register(Fault(for_all=True, kind="failover", strike=_failover, needs=frozenset({Need.STANDBY}))).kind
STANDBY_AWAY: Final = register(
    Fault(
        for_all=True,
        kind="standby_away",
        strike=_standby_away,
        hold_s=_for_some_seconds,
        needs=frozenset({Need.STANDBY}),
    )
).kind
# What became due meanwhile would be of the future again if the clock went back, for as long as the jump: it stays.
CLOCK_FORWARD: Final = register(
    Fault(for_all=True, kind="clock_forward", strike=_jump(JUMP_S, back=False), needs=frozenset({Need.FAKE_TIME}))
).kind
CLOCK_BACK: Final = register(
    Fault(
        for_all=True,
        kind="clock_back",
        strike=_jump(-JUMP_S, back=True),
        hold_s=_for_some_seconds,
        needs=frozenset({Need.FAKE_TIME}),
    )
).kind
FULL_DISK: Final = register(
    Fault(
        for_all=True, kind="full_disk", strike=_fill_disk, hold_s=_for_some_seconds, needs=frozenset({Need.SMALL_DISK})
    )
).kind
