"""PeerService as a node meets it: nonsense is refused, the unknown ignored, and what is out of date costs little."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from server.app import Node
from server.domain.sharding import shard_of_id
from shardwheel.v1 import peer_service_pb2 as pb
from shardwheel.v1.peer_service_pb2_grpc import PeerServiceStub
from shardwheel.v1.worker_service_pb2 import CANCEL_REQUESTED
from tests.integration.api.node import refused
from tests.support.nodes import finished, running_node, submit
from tests.support.raw_worker import raw_worker
from tests.support.waiting import eventually


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    """A node that owns every shard and does not sweep."""
    async with running_node(database, tmp_path, sweep="60s") as running:
        yield running


@pytest.fixture
async def peer(node: Node) -> AsyncIterator[PeerServiceStub]:
    """Another node's way to it."""
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield PeerServiceStub(channel)


async def test_nonsense_is_refused_by_field(peer: PeerServiceStub) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT) as refusal:
        await peer.Tell(pb.TellRequest(node="b", final_jobs=[4095], pending_jobs=[pb.PendingJobNews(job_id=4096)]))
    assert set(refusal[0].fields) == {"final_jobs[0]", "pending_jobs[0].handler_id", "pending_jobs[0].priority"}


async def test_what_a_newer_node_tells_is_ignored(node: Node, peer: PeerServiceStub) -> None:
    newer = pb.TellRequest(node="b", watched_jobs=[4096]).SerializeToString() + b"\xf8\x7f\x01"
    answer = await peer.Tell(pb.TellRequest.FromString(newer))
    assert list(answer.newly_watched_jobs) == [4096]


async def test_news_that_is_out_of_date_costs_one_look_at_most(node: Node, peer: PeerServiceStub) -> None:
    async with raw_worker(node.address, {"h": 4}) as worker:
        [job_id] = await submit(node, "h")
        [job] = await worker.next_jobs(1)
        handler_id = node.engine.registry.of_shard(shard_of_id(job_id))[0].handler_id
        worker.complete([job])
        await finished(node, [job_id])
        claims = node.engine.claimer.claims
        stale = pb.TellRequest(
            node="b",
            pending_jobs=[pb.PendingJobNews(job_id=job_id, handler_id=handler_id, priority=3, due_at_us=1)],
            ended_attempts=[pb.EndedAttemptNews(job_id=job_id, claim=claim) for claim in (1, 7)],
            freed_keys=[pb.FreedKeyNews(shard=1, namespace_id=1, concurrency_key="nobody's")],
            cancels=[pb.CancelNews(job_id=job_id, claim=1, worker_id=99, reason=CANCEL_REQUESTED)],
            schedules=[pb.ScheduleNews(shard=1, next_fire_at_us=1)],
        )
        await peer.Tell(stale)
        [following] = await submit(node, "h")
        await worker.next_jobs(1)
        assert node.engine.claimer.claims <= claims + 2
        # The bound that the stale job lowered does not bring it up again.
        await eventually(lambda: node.engine.index.waiting(handler_id) == 0, what="no due job that is not there")
        assert following != job_id


async def test_news_of_shards_that_are_not_served_is_not_kept(node: Node, peer: PeerServiceStub) -> None:
    await node.manager.drain()
    before = len(node.engine.index)
    pending = [pb.PendingJobNews(job_id=n << 12 | 5, handler_id=1, priority=3, due_at_us=1) for n in range(1, 100)]
    await peer.Tell(pb.TellRequest(node="b", pending_jobs=pending))
    assert len(node.engine.index) == before
    view = await peer.GetHandlerView(pb.GetHandlerViewRequest(handler_id=1, shard=5))
    assert not view.serves_shard
