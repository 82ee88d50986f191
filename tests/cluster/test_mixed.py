"""Kills and stops under load, with leases that PostgreSQL keeps: what the smoke on ZooKeeper does not try."""

from typing import Final

from tests.cluster.client import Load
from tests.cluster.cluster import QUICK, StartCluster
from tests.cluster.nemeses import plan
from tests.cluster.nemeses.postgres import KILL_POSTGRES, TERMINATE_BACKENDS
from tests.cluster.nemeses.processes import KILL_NODE, KILL_WORKER, STOP_NODE, STOP_WORKER
from tests.cluster.run import new_run

FAULTS: Final = (KILL_NODE, KILL_WORKER, KILL_POSTGRES, STOP_NODE, STOP_WORKER, TERMINATE_BACKENDS)
SECONDS: Final = 25.0


async def test_mixed_faults(start_cluster: StartCluster, seed: int) -> None:
    cluster = await start_cluster(nodes=2, settings=QUICK)
    run = new_run(cluster, seed=seed, load=Load(rate=350.0, seconds=SECONDS), chosen=FAULTS)
    await run.add_schedules(6, SECONDS)
    blows = plan(seed, SECONDS, FAULTS, times=run.times)
    for blow in blows:
        print(blow)
    await run.load_under(blows)
    _, verdict = run.verdict(seed=seed, unanswered=run.submitters.refused)
    assert verdict.numbers["submitted"] > 20 * SECONDS, "the load was too small to prove anything"
