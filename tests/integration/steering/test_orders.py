"""Orders through the API of three real nodes: any of them takes them, the leader carries them out."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from server.app import Node
from shardwheel.v1 import admin_service_pb2 as pb
from tests.integration.steering.admin import admin_at, counts, settled
from tests.support.nodes import configured_node, running_nodes
from tests.support.waiting import eventually


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The machine-readable reason of an answer."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    for packed in status.details:
        info = error_details_pb2.ErrorInfo()
        if packed.Unpack(info):
            return str(info.reason)
    raise AssertionError("no reason")


def leader_of(nodes: list[Node]) -> Node:
    [leader] = [node for node in nodes if node.cluster.leader() == node.config.node]
    return leader


async def test_orders_given_to_any_node_are_obeyed_and_shown_by_all(
    database: str, leases: dict[str, str], tmp_path: Path
) -> None:
    async with running_nodes(database, tmp_path, 3, **leases) as nodes, AsyncExitStack() as stack:
        leader = leader_of(nodes)
        admins = [await stack.enter_async_context(admin_at(node.address)) for node in nodes if node is not leader]
        one, two = admins

        # A shard is moved and pinned by way of a node that does not lead.
        status = await settled(one)
        shard = next(each for each in status.shards if each.owner != leader.config.node)
        request = pb.MoveShardRequest(shard=shard.shard, node=leader.config.node)
        request.pin.FromTimedelta(timedelta(seconds=20))
        moved = await one.MoveShard(request, timeout=30)
        assert (moved.leader, sorted(move.cause for move in moved.moves)) == (leader.config.node, ["balance", "order"])
        assert all(abs(each.after - each.before) <= 1 for each in moved.balance)
        status = await settled(two, at_least=moved.plan_version)
        assert status.shards[shard.shard].owner == leader.config.node
        [pin] = status.pins
        left = pin.until.ToDatetime(tzinfo=UTC) - datetime.now(UTC)
        assert (pin.shard, pin.node, left <= timedelta(seconds=20)) == (shard.shard, leader.config.node, True)

        # The pin ends by itself, which is a new plan; the shard stays where it is.
        async def unpinned() -> bool:
            return not (await two.GetStatus(pb.GetStatusRequest(), timeout=30)).pins

        await eventually(unpinned, timeout_s=60, what="the end of the pin")
        assert (await settled(one)).shards[shard.shard].owner == leader.config.node

        # While paused, a node that joins is given nothing; a rebalance is refused, its preview is not.
        paused = await two.PauseRebalance(pb.PauseRebalanceRequest(), timeout=30)
        newcomer = configured_node(database, tmp_path / "d", name="node-d", **leases)
        await newcomer.start()
        stack.push_async_callback(newcomer.stop)
        await asyncio.sleep(7)
        status = await settled(one, at_least=paused.plan_version)
        assert (status.paused, counts(status)["node-d"]) == (True, 0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await one.Rebalance(pb.RebalanceRequest(), timeout=30)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert reason_of(refused.value) == "REBALANCE_PAUSED"
        preview = await one.Rebalance(pb.RebalanceRequest(dry_run=True), timeout=30)
        assert {each.node: each.after for each in preview.balance} == dict.fromkeys(
            ["node-a", "node-b", "node-c", "node-d"], 16
        )
        assert {move.target for move in preview.moves} == {"node-d"}

        # Resumed and rebalanced, it gets its share without the wait for things to settle, in bounded steps.
        resumed = await one.ResumeRebalance(pb.ResumeRebalanceRequest(), timeout=30)
        outdated_request = pb.RebalanceRequest(expected_plan_version=resumed.plan_version + 1)
        with pytest.raises(grpc.aio.AioRpcError) as outdated:
            await one.Rebalance(outdated_request, timeout=30)
        assert (outdated.value.code(), reason_of(outdated.value)) == (grpc.StatusCode.ABORTED, "PLAN_CHANGED")
        balanced = await two.Rebalance(pb.RebalanceRequest(), timeout=30)
        assert len(balanced.moves) == 16
        await eventually(lambda: len(newcomer.engine.ownership.epochs) == 16, timeout_s=40, what="a fair share")
        status = await settled(one, at_least=balanced.plan_version)
        assert set(counts(status).values()) == {16}


async def test_what_cannot_be_obeyed_is_refused_in_words(database: str, tmp_path: Path) -> None:
    async with running_nodes(database, tmp_path, 2) as nodes:
        leader = leader_of(nodes)
        [other] = [node for node in nodes if node is not leader]
        # By way of the other node: its answer is the leader's.
        async with admin_at(other.address) as admin:
            cases = [
                (
                    admin.DrainNode(pb.DrainNodeRequest(node="nobody")),
                    "NOT_FOUND",
                    "NODE_NOT_FOUND",
                    "there are: node-a",
                ),
                (admin.DrainNode(pb.DrainNodeRequest()), "INVALID_ARGUMENT", "INVALID_VALUE", "node: is required"),
                (admin.EvictNode(pb.EvictNodeRequest(node="-")), "INVALID_ARGUMENT", "INVALID_VALUE", "node: takes"),
                (
                    admin.MoveShard(pb.MoveShardRequest(shard=64, node="node-a")),
                    "INVALID_ARGUMENT",
                    "INVALID_VALUE",
                    "shard: has to be from 0 to 63",
                ),
                (admin.MoveShard(pb.MoveShardRequest(node="node-a")), "INVALID_ARGUMENT", "INVALID_VALUE", "shard"),
                (
                    admin.Rebalance(pb.RebalanceRequest(expected_plan_version=-1)),
                    "INVALID_ARGUMENT",
                    "INVALID_VALUE",
                    "expected_plan_version",
                ),
            ]
            for call, code, reason, text in cases:
                assert isinstance(call, grpc.aio.UnaryUnaryCall)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert (refused.value.code().name, reason_of(refused.value)) == (code, reason)
                assert text in (refused.value.details() or "")
            await admin.DrainNode(pb.DrainNodeRequest(node=other.config.node), timeout=30)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await admin.DrainNode(pb.DrainNodeRequest(node=leader.config.node), timeout=30)
            assert (refused.value.code().name, reason_of(refused.value)) == ("FAILED_PRECONDITION", "LAST_NODE")
            unfit = pb.MoveShardRequest(shard=1, node=other.config.node)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await admin.MoveShard(unfit, timeout=30)
            assert (refused.value.code().name, reason_of(refused.value)) == ("FAILED_PRECONDITION", "NODE_UNFIT")
            await admin.DrainNode(pb.DrainNodeRequest(node=leader.config.node, force=True), timeout=30)
            await eventually(lambda: not leader.engine.ownership.epochs, timeout_s=30, what="no node serving")

            async def all_wait() -> bool:
                status = await admin.GetStatus(pb.GetStatusRequest(), timeout=30)
                return {each.waiting_for for each in status.shards} == {"a node that can serve"}

            # The node that is asked learns the new plan a moment later.
            await eventually(all_wait, timeout_s=30, what="all shards to wait for a node")


async def test_an_order_is_forwarded_once_and_tells_why_it_waits_in_vain(database: str, tmp_path: Path) -> None:
    async with running_nodes(database, tmp_path, 2) as nodes:
        leader = leader_of(nodes)
        [other] = [node for node in nodes if node is not leader]
        async with admin_at(other.address) as admin:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await admin.PauseRebalance(
                    pb.PauseRebalanceRequest(), timeout=10, metadata=(("shardwheel-forwarded-by", "node-x"),)
                )
            assert (refused.value.code().name, reason_of(refused.value)) == ("UNAVAILABLE", "NOT_LEADER")
            # The leader cannot be reached: the caller's own deadline is kept, and the reason is told.
            await leader.server.stop(0)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await admin.PauseRebalance(pb.PauseRebalanceRequest(), timeout=2)
            assert (refused.value.code().name, reason_of(refused.value)) == ("UNAVAILABLE", "LEADER_UNREACHABLE")
