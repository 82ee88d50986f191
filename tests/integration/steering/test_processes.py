"""Nodes in processes of their own that hang or die around an order."""

import asyncio
import time
from pathlib import Path

import pytest

from shardwheel.v1.admin_service_pb2 import (
    DrainNodeRequest,
    EvictNodeRequest,
    GetStatusRequest,
    GetStatusResponse,
    PauseRebalanceRequest,
    UndrainNodeRequest,
)
from tests.integration.steering.admin import admin_at, counts, settled
from tests.integration.steering.processes import TTL_S, running_trio
from tests.support.waiting import eventually

# Three processes have to start, and some of the waits are long.
pytestmark = pytest.mark.timeout(300)

# No node loses its session by itself on a busy machine: it would be the end of a session, and no eviction.
LONG_TTL_S = 20.0


async def test_a_node_that_hangs_is_evicted_long_before_its_session_ends(
    database: str, leases: dict[str, str], tmp_path: Path
) -> None:
    async with (
        running_trio(database, leases, tmp_path, ttl_s=LONG_TTL_S) as trio,
        admin_at(trio.addresses["node-b"]) as admin,
    ):
        before = await settled(admin)
        theirs = [shard for shard in before.shards if shard.owner == "node-c"]
        trio.freeze("node-c")
        began_s = time.monotonic()
        evicted = await admin.EvictNode(EvictNodeRequest(node="node-c"), timeout=30)
        assert {move.cause for move in evicted.moves} == {"evict"}
        after = await settled(admin, at_least=evicted.plan_version, without=["node-c"])
        took_s = time.monotonic() - began_s
        print(f"{leases['coordinator']}: {len(theirs)} shards of a node that hung served again after {took_s:.2f} s")
        assert took_s < LONG_TTL_S / 2
        assert all(after.shards[shard.shard].epoch > shard.epoch for shard in theirs)
        assert after.evicted_nodes == ["node-c"]

        # When it goes on, it learns of it, comes back, and is given nothing until it is undrained.
        trio.thaw("node-c")

        async def back() -> bool:
            status = await admin.GetStatus(GetStatusRequest(), timeout=30)
            return {node.node: node.state for node in status.nodes}.get("node-c") == "evicted"

        await eventually(back, timeout_s=60, what="the evicted node's return")
        await asyncio.sleep(6)
        status = await settled(admin)
        assert counts(status)["node-c"] == 0
        await admin.UndrainNode(UndrainNodeRequest(node="node-c"), timeout=30)
        await eventually(lambda: has_shards(trio.addresses["node-b"], "node-c"), timeout_s=60, what="shards again")


async def test_a_leader_that_hangs_is_evicted_by_way_of_another_node(
    database: str, leases: dict[str, str], tmp_path: Path
) -> None:
    async with running_trio(database, leases, tmp_path) as trio, admin_at(trio.addresses["node-c"]) as admin:
        status = await settled(admin)
        assert status.leader == "node-a"
        trio.freeze("node-a")
        evicted = await admin.EvictNode(EvictNodeRequest(node="node-a"), timeout=30)
        assert evicted.leader in ("node-b", "node-c")
        status = await settled(admin, at_least=evicted.plan_version, without=["node-a"])
        assert (status.leader, list(status.evicted_nodes)) == (evicted.leader, ["node-a"])
        trio.thaw("node-a")
        await asyncio.sleep(TTL_S + 2)
        assert counts(await settled(admin))["node-a"] == 0


async def test_when_the_leader_dies_right_after_an_order_the_next_one_obeys_it(
    database: str, leases: dict[str, str], tmp_path: Path
) -> None:
    async with running_trio(database, leases, tmp_path) as trio, admin_at(trio.addresses["node-b"]) as admin:
        await settled(admin)
        await admin.PauseRebalance(PauseRebalanceRequest(), timeout=30)
        drained = await admin.DrainNode(DrainNodeRequest(node="node-c"), timeout=30)
        trio.kill(drained.leader)
        assert drained.leader == "node-a"
        status = await settled(admin, at_least=drained.plan_version, without=["node-a", "node-c"], timeout_s=40)
        assert (status.leader, status.paused, list(status.drained_nodes)) == ("node-b", True, ["node-c"])
        assert counts(status) == {"node-b": 64, "node-c": 0}


async def has_shards(address: str, node: str) -> bool:
    async with admin_at(address) as admin:
        status: GetStatusResponse = await admin.GetStatus(GetStatusRequest(), timeout=30)
        return counts(status).get(node, 0) > 0
