"""Three nodes on a real ZooKeeper, with TLS and tokens, three workers, and a dozen faults in a random order."""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from tests.cluster import audit
from tests.cluster.client import Load
from tests.cluster.cluster import StartCluster
from tests.cluster.logs import moved_partitions
from tests.cluster.nemeses import plan
from tests.cluster.nemeses.network import NODE_POSTGRES, NODE_ZOOKEEPER, WORKER_ALL, WORKER_NODE_RESETS
from tests.cluster.nemeses.postgres import KILL_POSTGRES
from tests.cluster.nemeses.processes import KILL_NODE, KILL_WORKER, STOP_LEADER, STOP_WORKER, TERMINATE_NODE
from tests.cluster.nemeses.zookeeper import HANG, RESTART
from tests.cluster.run import new_run
from tests.cluster.settings import CLUSTER
from tests.cluster.zookeeper import ZookeeperSite, zookeeper_site

FAULTS: Final = (
    KILL_NODE,
    STOP_LEADER,
    TERMINATE_NODE,
    KILL_WORKER,
    STOP_WORKER,
    RESTART,
    HANG,
    NODE_ZOOKEEPER,
    NODE_POSTGRES,
    WORKER_NODE_RESETS,
    WORKER_ALL,
    KILL_POSTGRES,
)
SECONDS: Final = 60.0


@pytest.fixture
def zookeeper_alone() -> Iterator[ZookeeperSite]:
    """A ZooKeeper that may be broken."""
    with zookeeper_site() as site:
        yield site


async def test_smoke(start_cluster: StartCluster, database: str, zookeeper_alone: ZookeeperSite, seed: int) -> None:
    audit.install(database)
    cluster = await start_cluster(
        nodes=3, workers=3, settings=CLUSTER, zookeeper=zookeeper_alone, relayed=True, secure=True
    )
    load = Load(rate=200.0, seconds=SECONDS, long_s=(1.0, 9.0))
    run = new_run(cluster, seed=seed, load=load, chosen=FAULTS)
    run.audited = True
    await run.add_schedules(40, SECONDS, (1, 2, 5, 10))
    blows = plan(seed, SECONDS, FAULTS, times=run.times)
    for blow in blows:
        print(blow)
    await run.load_under(blows)
    _, verdict = await asyncio.to_thread(run.verdict, seed=seed)
    assert verdict.numbers["submitted"] > 20 * SECONDS, "the load was too small to prove anything"
    # E29
    assert moved_partitions([*(node.output_file for node in cluster.nodes), *cluster.site.logs]) == 0
