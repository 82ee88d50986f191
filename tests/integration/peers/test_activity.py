"""GetActivity: any node tells what all of them did, and whose numbers it lacks."""

import grpc.aio

from server.app import Node
from shardwheel.v1.activity_pb2 import Activity
from shardwheel.v1.admin_service_pb2 import GetActivityRequest
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from tests.support.clusters import Cluster
from tests.support.nodes import finished, submit
from tests.support.raw_worker import RawWorker
from tests.support.waiting import eventually


async def activity(node: Node) -> Activity:
    """What a node says that the cluster did."""
    async with grpc.aio.insecure_channel(node.address) as channel:
        return await AdminServiceStub(channel).GetActivity(GetActivityRequest())


async def run_jobs(node: Node, worker: RawWorker, count: int) -> None:
    """Have a node's own worker complete jobs of one of the node's shards."""
    job_ids = await submit(node, "h", count, shard=min(node.engine.ownership.epochs))
    worker.complete(await worker.next_jobs(count))
    await finished(node, job_ids)


async def test_any_node_tells_what_all_of_them_did(cluster: Cluster, workers: dict[str, RawWorker]) -> None:
    first, second, third = cluster.nodes
    for count, node in enumerate(cluster.nodes, start=2):
        await run_jobs(node, workers[node.config.node], count)

    async def counted() -> bool:
        return sum(one.completed_count for one in (await activity(first)).steps) == 9

    await eventually(counted, timeout_s=30, what="the end of the step in all nodes")
    for node in (second, third):
        told = await activity(node)
        assert sum(one.started_count for one in told.steps) == 9
        assert sum(sum(one.lateness_counts) for one in told.steps) == 9
        assert [one.node for one in told.nodes] == ["node-a", "node-b", "node-c"]
        assert list(told.missing_nodes) == []


async def test_a_node_that_does_not_answer_is_named(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    # Its process is there for the coordinator, and takes no calls.
    await second.server.stop(0)
    told = await activity(first)
    assert [one.node for one in told.nodes] == ["node-a", "node-c"]
    assert list(told.missing_nodes) == ["node-b"]
