"""PostgreSQL restarted, crashed, full, locked: the whole throughput is back by itself, and nothing ran twice for it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from server.store.migrate import migrate
from tests.cluster.client import Load
from tests.cluster.cluster import QUICK, Cluster
from tests.cluster.history import History
from tests.cluster.nemeses import Blow, Nemesis
from tests.cluster.nemeses.postgres import KILL_BACKEND, RESTART_FAST, RESTART_IMMEDIATE, TERMINATE_BACKENDS
from tests.cluster.nemeses.postgres_sessions import EXHAUST_CONNECTIONS, LOCK_JOBS, LOCK_SHARD_ROWS, LOCK_SHARDS
from tests.cluster.nemeses.postgres_site import CLOCK_BACK, CLOCK_FORWARD, FAILOVER, FULL_DISK, STANDBY_AWAY
from tests.cluster.run import Run, new_run
from tests.cluster.service import BY_INTENT, restarted, service
from tests.support.postgres_site import PostgresSite, equipped_site

RATE: Final = 80.0
_FIRST_S: Final = 1.5
_SOON_S: Final = 1.5
"""A busy machine's time for an answer."""
_TURN_S: Final = 3.0
"""The load comes in turns of this length, until everything is healed, and some more."""
_BACK_S: Final = 60.0


@asynccontextmanager
async def _cluster_on(site: PostgresSite, folder: Path) -> AsyncIterator[Cluster]:
    dsn = site.dsn(site.server.create_database())
    await migrate(dsn)
    async with Cluster(folder, site, dsn, nodes=2, settings={**QUICK, "worker_lease": "4s"}) as cluster:
        try:
            yield cluster
        except BaseException:
            print(cluster.tails())
            raise


async def _survive(site: PostgresSite, folder: Path, seed: int, faults: Sequence[tuple[str, float, float]]) -> History:
    """Strike with each (kind, hold, pause afterwards) under load; all has to be as before in the end, by itself."""
    blows, at_s = [], _FIRST_S
    for kind, hold_s, pause_s in faults:
        blows.append(Blow(at_s=at_s, fault=kind, victim=seed, hold_s=hold_s))
        at_s += hold_s + pause_s
    async with _cluster_on(site, folder) as cluster:
        load = Load(rate=RATE, seconds=_TURN_S, ahead_s=2.0, long_s=(1.0, 3.0))
        run = new_run(cluster, seed=seed, load=load, chosen=[kind for kind, _, _ in faults])
        attack = asyncio.create_task(Nemesis(cluster).run(blows))
        while not attack.done():
            await run.submitters.run()
        await attack
        back_s = await _as_before(run)
        await run.quiet()
        history, verdict = run.verdict(seed=seed)
    print(f"{seed=}: the whole throughput was back {back_s:.1f} s after everything was whole")
    again = {name for name in verdict.numbers if name.startswith("again_")}
    assert again <= BY_INTENT, f"jobs ran again although their workers lived: {verdict.numbers}"
    assert not restarted(history)
    return history


async def _as_before(run: Run) -> float:
    """Send turns of the load until a whole one is served; return the seconds until it began.

    What has waited comes first, so that takes longer the less the machine can do beside the load.
    """
    healed = time.monotonic()
    turns: list[float] = []
    while True:
        turns.append(time.monotonic())
        await run.submitters.run()
        if len(turns) > 1:
            served = service(run.history(), since=turns[-2], until=turns[-1], within_s=_SOON_S)
            print(f"turn {len(turns) - 1}: {served.share:.1%} of {served.sent}")
            if served.share == 1.0 and served.sent > RATE:
                return turns[-2] - healed
        assert time.monotonic() - healed < _BACK_S, "the whole throughput is not back"


async def test_restarts_and_lost_sessions(tmp_path: Path, seed: int) -> None:
    faults = [
        (RESTART_FAST, 0.5, 1.5),
        (TERMINATE_BACKENDS, 0.0, 1.0),
        (KILL_BACKEND, 0.0, 2.0),
        (EXHAUST_CONNECTIONS, 3.0, 1.0),
    ]
    with equipped_site() as site:
        await _survive(site, tmp_path, seed, faults)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "hold_s"),
    [(RESTART_FAST, 6.0), (RESTART_IMMEDIATE, 6.0), (EXHAUST_CONNECTIONS, 10.0)],
)
async def test_away_for_longer_than_a_lease(tmp_path: Path, seed: int, kind: str, hold_s: float) -> None:
    with equipped_site() as site:
        await _survive(site, tmp_path, seed, [(kind, hold_s, 4.0)] * 2)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [LOCK_SHARD_ROWS, LOCK_SHARDS, LOCK_JOBS])
async def test_foreign_locks(tmp_path: Path, seed: int, kind: str) -> None:
    with equipped_site() as site:
        await _survive(site, tmp_path, seed, [(kind, 8.0, 2.0)] * 2)


@pytest.mark.soak
async def test_failovers(tmp_path: Path, seed: int) -> None:
    """Nothing that was acknowledged is lost with the primary."""
    with equipped_site(standby=True) as site:
        await _survive(site, tmp_path, seed, [(FAILOVER, 1.0, 3.0), (STANDBY_AWAY, 3.0, 2.0), (FAILOVER, 1.0, 3.0)])


@pytest.mark.soak
async def test_clock_jumps(tmp_path: Path, seed: int) -> None:
    with equipped_site(clock=True) as site:
        await _survive(site, tmp_path, seed, [(CLOCK_FORWARD, 0.0, 4.0), (CLOCK_BACK, 3.0, 3.0)] * 2)


@pytest.mark.soak
async def test_full_disk(tmp_path: Path, seed: int) -> None:
    with equipped_site(disk_mb=400) as site:
        await _survive(site, tmp_path, seed, [(FULL_DISK, 5.0, 3.0)] * 2)
