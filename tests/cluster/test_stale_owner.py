"""E32 and E33: a node that is no longer the owner of its shards does nothing to them, and finds out.

Stopped beyond its session, or cut off from ZooKeeper alone, it still believes that it owns them; claims, lost workers,
firings and old keys are waiting for it meanwhile. What it does to a shard of another node's the audit sees.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest
from kazoo.client import KazooClient

from tests.cluster import audit
from tests.cluster.client import Load
from tests.cluster.cluster import Cluster, StartCluster
from tests.cluster.evidence import owners
from tests.cluster.nemeses import Blow
from tests.cluster.nemeses.network import NODE_ZOOKEEPER
from tests.cluster.nemeses.processes import KILL_WORKER, STOP_NODE
from tests.cluster.run import new_run
from tests.cluster.settings import CLUSTER
from tests.cluster.zookeeper import CHROOT, ZookeeperSite, zookeeper_site
from tests.support.waiting import eventually

# A node reads its leases anew, and looks for old keys, this often: so long an idle shard's loss may go unnoticed.
CHECK_S: Final = 30.0
_LOST: Final = re.compile(r"shard lost .*cause=(?P<cause>[a-z ]+?)\s+epoch=\d+ .*shard=(?P<shard>\d+)")


@pytest.fixture
def zookeeper_alone() -> Iterator[ZookeeperSite]:
    """A ZooKeeper that may be broken."""
    with zookeeper_site() as site:
        yield site


def losses(output: Path) -> list[tuple[int, str]]:
    """Return (shard, cause) of each shard that a node says it has lost."""
    plain = re.sub(r"\x1b\[[0-9;]*m|'", "", output.read_text(errors="replace"))
    return [(int(one["shard"]), one["cause"]) for one in _LOST.finditer(plain)]


async def _started(start_cluster: StartCluster, database: str, site: ZookeeperSite, *, workers: int = 3) -> Cluster:
    await asyncio.to_thread(audit.install, database)
    cluster = await start_cluster(nodes=2, workers=workers, settings=CLUSTER, zookeeper=site, relayed=True)
    await eventually(
        lambda: set(owners(cluster.dsn).values()) == {"node-1", "node-2"}, timeout_s=20.0, what="both owning"
    )
    return cluster


@pytest.mark.parametrize("fault", [STOP_NODE, NODE_ZOOKEEPER])
async def test_a_stale_owner_does_nothing(
    start_cluster: StartCluster, database: str, zookeeper_alone: ZookeeperSite, seed: int, fault: str
) -> None:
    """E32. A worker is killed while others own its shards, so that there is something to be reaped as well."""
    cluster = await _started(start_cluster, database, zookeeper_alone)
    seconds = 26.0
    run = new_run(cluster, seed=seed, load=Load(rate=150.0, seconds=seconds), chosen=[fault, KILL_WORKER])
    run.audited = True
    await run.add_schedules(20, seconds)
    hold_s = 14.0
    blows = [
        Blow(at_s=2.0, fault=fault, victim=seed, hold_s=hold_s),
        Blow(at_s=11.0, fault=KILL_WORKER, victim=seed, hold_s=2.0),
    ]
    await run.load_under(blows)
    history, verdict = await asyncio.to_thread(run.verdict, seed=seed, fault=fault)
    assert verdict.numbers["epoch_violations"] == 0
    victim = history.strikes[0].victim.partition("→")[0]
    [node] = [node for node in cluster.nodes if node.name == victim]
    causes = {cause for _, cause in losses(node.output_file)}
    assert causes & {"fenced", "session lost"}, f"it has lost nothing: {causes}"
    # All that it owned was taken over while it was stale.
    taken = [one for one in history.raises if not one.process.startswith(f"{victim}.")]
    assert len({one.shard for one in taken}) == 64


async def test_the_loss_of_an_idle_shard_is_noticed(
    start_cluster: StartCluster, database: str, zookeeper_alone: ZookeeperSite
) -> None:
    """E33: the lease of one shard is gone, the epoch of another is a stranger's, and nobody wants anything of them."""
    cluster = await _started(start_cluster, database, zookeeper_alone, workers=0)
    [node, _] = cluster.nodes
    mine = sorted(shard for shard, owner in owners(cluster.dsn).items() if owner == node.name)
    without_lease, without_epoch = mine[0], mine[1]
    client = KazooClient(hosts=zookeeper_alone.servers[0].hosts)
    await asyncio.to_thread(client.start, 10)
    began = time.monotonic()
    try:
        await asyncio.to_thread(client.delete, f"{CHROOT}/leases/{without_lease:04d}")
    finally:
        await asyncio.to_thread(client.stop)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE shardwheel_store.shards SET epoch = epoch + 1 WHERE shard = %s", (without_epoch,))
    wanted = {(without_lease, "lease gone"), (without_epoch, "fenced")}
    await eventually(
        lambda: wanted <= set(losses(node.output_file)), timeout_s=CHECK_S + 10.0, what=f"the loss of {wanted}"
    )
    print(f"noticed after {time.monotonic() - began:.1f} s")
    # Both are leased and fenced in anew, for the plan still gives them to the node.
    await eventually(lambda: owners(cluster.dsn).get(without_lease) == node.name, timeout_s=10.0, what="a new lease")
