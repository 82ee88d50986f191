"""PostgreSQL or all nodes away for longer than a worker's lease, workers alive: no job runs again."""

from collections.abc import Mapping
from functools import partial

import pytest

from tests.cluster.client import RETRY, Load, Wish
from tests.cluster.cluster import QUICK, Cluster, StartCluster
from tests.cluster.evidence import read_executions, running_throughout
from tests.cluster.nemeses import Blow
from tests.cluster.nemeses.postgres import POSTGRES_AWAY
from tests.cluster.nemeses.processes import NODES_AWAY
from tests.cluster.run import new_run
from tests.cluster.standing import Cause
from tests.cluster.worker_program import LONG, SHORT
from tests.support.waiting import eventually
from worker_sdk import NewJob

# Reasons that have nothing to do with an outage.
_BY_INTENT = {f"again_{cause}" for cause in (Cause.FAILED, Cause.SNOOZED, Cause.TIMED_OUT)}
_STRIKE_AT_S = 2.0
_MINUTE_S = 60.0
_LONG_LEASE: Mapping[str, str] = {"worker_lease": "15s", "heartbeat": "3s", "reset_grace": "5s", "kill_grace": "10s"}


async def _endure(cluster: Cluster, seed: int, fault: str, *, away_s: float, lease_s: float, rate: float) -> None:
    """Load before, during and after an outage; some jobs last from before it until after a lease has passed."""
    load = Load(rate=rate, seconds=_STRIKE_AT_S + away_s + 3.0)
    run = new_run(cluster, seed=seed, load=load, chosen=[fault])
    lasting_s = _STRIKE_AT_S + away_s + lease_s + 3.0
    ids = await run.submitters.send([_lasting(number, lasting_s) for number in range(12)])
    await eventually(partial(_started, cluster, ids), what="the lasting jobs to run")
    await run.load_under([Blow(at_s=_STRIKE_AT_S, fault=fault, victim=0, hold_s=away_s)])
    history, verdict = run.verdict(seed=seed, away_s=away_s)
    again = {name: count for name, count in verdict.numbers.items() if name.startswith("again_")}
    assert not again.keys() - _BY_INTENT, f"jobs ran again: {again}"
    struck = history.strikes[0].at.mono
    through = running_throughout(history.executions, began=struck, ended=struck + away_s + lease_s)
    assert set(ids) <= {one.job for one in through}


def _lasting(number: int, seconds: float) -> Wish:
    name = f"lasting-{number}"
    handler = LONG if number % 2 else SHORT
    return Wish(NewJob(handler=handler, payload={"first_s": seconds}, name=name, dedupe_key=name, retry=RETRY))


def _started(cluster: Cluster, ids: list[int]) -> bool:
    return set(ids) <= {one.job for one in read_executions(cluster.execution_files)}


async def test_postgres_away_for_longer_than_a_lease(start_cluster: StartCluster, seed: int) -> None:
    cluster = await start_cluster(settings={**QUICK, "worker_lease": "3s"})
    await _endure(cluster, seed, POSTGRES_AWAY, away_s=8.0, lease_s=3.0, rate=300.0)


async def test_all_nodes_away_for_longer_than_a_lease(start_cluster: StartCluster, seed: int) -> None:
    cluster = await start_cluster(settings={**QUICK, "worker_lease": "3s"})
    await _endure(cluster, seed, NODES_AWAY, away_s=5.0, lease_s=3.0, rate=300.0)


@pytest.mark.soak
@pytest.mark.parametrize("fault", [POSTGRES_AWAY, NODES_AWAY])
@pytest.mark.parametrize("settings", [_LONG_LEASE, {"worker_lease": "5s"}], ids=["lease15", "lease5"])
async def test_away_for_a_minute(
    start_cluster: StartCluster, seed: int, fault: str, settings: Mapping[str, str]
) -> None:
    """With the default times of a node, and with a lease that is over twelve times meanwhile."""
    cluster = await start_cluster(settings={**QUICK, **settings})
    lease_s = float(settings["worker_lease"].removesuffix("s"))
    await _endure(cluster, seed, fault, away_s=_MINUTE_S, lease_s=lease_s, rate=300.0)
