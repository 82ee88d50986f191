"""A node is drained under load: its shards have a new owner at once, and nothing runs twice."""

import asyncio
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest

from shardwheel.v1.admin_service_pb2 import DrainNodeRequest, UndrainNodeRequest
from tests.integration.steering.admin import admin_at, counts, settled
from tests.integration.steering.processes import running_trio
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, NewJob, Worker

# Three processes have to start.
pytestmark = pytest.mark.timeout(300)

# What is promised, on a machine that is not busy with other things; and what tells a hand-over from an expiry anywhere.
GAP_S = 0.25
BUSY_GAP_S = 5.0
# So long that no node loses its session on a busy machine: then it would have no shards to hand over.
TTL_S = 20.0
BATCH = 20
PAUSE_S = 0.1


class Load:
    """Jobs that are submitted to a node and run by a worker in the test's process, some of them long."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.sent = 0
        self.ran: Counter[int] = Counter()
        self.worker = Worker(address, name="w")
        self.worker.handler("h", max_concurrency=50)(self._handle)

    async def _handle(self, number: int) -> None:
        self.ran[number] += 1
        await asyncio.sleep(0.05 if number % 10 else 1.0)

    async def submit(self) -> None:
        """Until it is cancelled."""
        async with AsyncClient(self._address) as client:
            while True:
                numbers = range(self.sent, self.sent + BATCH)
                await client.submit_many([NewJob(handler="h", payload=number) for number in numbers])
                self.sent += BATCH
                await asyncio.sleep(PAUSE_S)


async def test_a_drain_under_load_hands_over_and_repeats_no_job(
    database: str, leases: dict[str, str], tmp_path: Path
) -> None:
    assert await drain_under_load(database, leases, tmp_path) <= BUSY_GAP_S


@pytest.mark.soak
async def test_a_drain_under_load_leaves_no_gap(database: str, leases: dict[str, str], tmp_path: Path) -> None:
    assert await drain_under_load(database, leases, tmp_path) <= GAP_S


async def drain_under_load(database: str, leases: dict[str, str], tmp_path: Path) -> float:
    """Drain a node and undrain it while jobs run; return the longest time that a shard had no owner, in seconds."""
    async with (
        running_trio(database, leases, tmp_path, ttl_s=TTL_S) as trio,
        admin_at(trio.addresses["node-b"]) as admin,
    ):
        load = Load(trio.addresses["node-a"])
        await asyncio.to_thread(load.worker.start)
        try:
            await eventually(lambda: len(load.worker.nodes) == 3, what="sessions to all nodes")
            submitting = asyncio.create_task(load.submit())
            await asyncio.sleep(1.0)
            since_s = time.time()
            drained = await admin.DrainNode(DrainNodeRequest(node="node-c"), timeout=30)
            assert {(move.source, move.cause) for move in drained.moves} == {("node-c", "drain")}
            assert len(drained.moves) >= 21
            status = await settled(admin, at_least=drained.plan_version, without=["node-c"])
            assert [node.state for node in status.nodes] == ["up", "up", "drained"]
            assert counts(status)["node-c"] == 0
            undrained = await admin.UndrainNode(UndrainNodeRequest(node="node-c"), timeout=30)
            assert not undrained.moves
            await settled(admin, at_least=undrained.plan_version + 1)
            assert not submitting.done()
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
            await eventually(lambda: len(load.ran) >= load.sent, timeout_s=60, what="the end of all jobs")
        finally:
            await asyncio.to_thread(load.worker.stop)
        gaps = trio.gaps_s(since_s)
    longest = max(gaps.values())
    print(
        f"{leases['coordinator']}: {len(gaps)} shards changed hands while {load.sent} jobs ran; without an owner for "
        f"{statistics.median(gaps.values()) * 1000:.0f} ms (median), {longest * 1000:.0f} ms (longest)"
    )
    assert len(gaps) >= 21
    assert {number: times for number, times in load.ran.items() if times > 1} == {}
    return longest
