"""Kills and stops of everything, under load: what was answered is done, and nothing twice without a reason."""

import os

import pytest

from tests.cluster.client import Load
from tests.cluster.cluster import QUICK, StartCluster
from tests.cluster.nemeses import plan
from tests.cluster.nemeses.postgres import KILL_POSTGRES, TERMINATE_BACKENDS
from tests.cluster.nemeses.processes import (
    KILL_NODE,
    KILL_WORKER,
    STOP_NODE,
    STOP_WORKER,
    TERMINATE_NODE,
    TERMINATE_WORKER,
)
from tests.cluster.run import new_run

LEASE_S = 5.0
KILLS = (KILL_NODE, KILL_WORKER, KILL_POSTGRES)
MIXED = (*KILLS, STOP_NODE, STOP_WORKER, TERMINATE_BACKENDS)
EVERYTHING = (*MIXED, TERMINATE_NODE, TERMINATE_WORKER)


async def _survive(start_cluster: StartCluster, seed: int, seconds: float, faults: tuple[str, ...], load: Load) -> None:
    cluster = await start_cluster(settings={**QUICK, "worker_lease": f"{LEASE_S:g}s"})
    run = new_run(cluster, seed=seed, load=load, chosen=faults)
    await run.add_schedules(6, seconds)
    blows = plan(seed, seconds, faults, times=run.times)
    for blow in blows:
        print(blow)
    await run.load_under(blows)
    _, verdict = run.verdict(seed=seed, seconds=seconds, unanswered=run.submitters.refused)
    assert verdict.numbers["submitted"] > 50 * seconds, "the load was too small to prove anything"


async def test_mixed_faults(start_cluster: StartCluster, seed: int) -> None:
    await _survive(start_cluster, seed, 25.0, MIXED, Load(rate=350.0, seconds=25.0))


@pytest.mark.soak
async def test_kills_for_a_minute(start_cluster: StartCluster, seed: int) -> None:
    """kill -9 of the node, a worker and PostgreSQL at random instants, for 60 s."""
    await _survive(start_cluster, seed, 60.0, KILLS, Load(rate=500.0, seconds=60.0))


@pytest.mark.soak
async def test_chaos(start_cluster: StartCluster, seed: int) -> None:
    """All faults mixed, for as many minutes as the environment says (2)."""
    seconds = 60.0 * float(os.environ.get("SHARDWHEEL_CHAOS_MINUTES", "2"))
    await _survive(start_cluster, seed, seconds, EVERYTHING, Load(rate=500.0, seconds=seconds))
