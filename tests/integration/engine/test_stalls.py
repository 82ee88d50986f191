"""A node that is held up itself, and workers that come back in the last moment: the living keep their attempts."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from server.app import Node
from server.domain.job import Backoff
from shardwheel.v1 import worker_service_pb2 as pb
from tests.support.nodes import Gate, finished, row, running_node, submit
from tests.support.postgres import PostgresServer
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually

AT_ONCE = Backoff(max_attempts=9, initial=timedelta(0), maximum=timedelta(0))
LEASE_S = 1.5


def hold_up(seconds: float) -> None:
    """Let nothing of the node run, as if its process were stopped."""
    time.sleep(seconds)


async def lost(node: Node) -> bool:
    """Whether some worker was given up."""
    return bool(await node.database.fetch("SELECT FROM workers WHERE lost_at IS NOT NULL"))


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path, worker_lease=f"{LEASE_S}s") as node:
        yield node


async def test_leases_that_end_while_the_node_is_held_up_prove_nothing(database: str, tmp_path: Path) -> None:
    """The worker has given the silent node up meanwhile, and is about to come back."""
    worker = RawWorker("", handlers={"mail": 1}, name="w")
    async with running_node(database, tmp_path, worker_lease=f"{LEASE_S}s", reset_grace="10s") as node:
        worker.address = node.address
        await worker.connect()
        [job_id] = await submit(node, "mail", backoff=AT_ONCE)
        [job] = await worker.next_jobs(1)
        [worker_id] = node.engine.registry.workers()
        await eventually(node.engine.liveness.may_reap_by_lease)
        await worker.break_stream()
        await eventually(lambda: node.engine.slots.of_worker(worker_id) is None)
        hold_up(1.2 * LEASE_S)
        # What comes first afterwards is the reaper.
        await node.engine.reaper.reap_once()
        found = await row(node, job_id)
        assert found is not None
        assert (found.state, found.open_claim) == (1, job.claim)
        await worker.connect()
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        await worker.break_stream()


async def test_a_grace_that_passes_while_the_node_is_held_up_is_no_grace(node: Node) -> None:
    worker = RawWorker(node.address, handlers={"mail": 1}, name="w")
    await worker.connect()
    [job_id] = await submit(node, "mail", backoff=AT_ONCE)
    [job] = await worker.next_jobs(1)
    [worker_id] = node.engine.registry.workers()
    await worker.break_stream()
    await eventually(lambda: node.engine.slots.of_worker(worker_id) is None)
    hold_up(2 * node.config.reset_grace.total_seconds())
    # Long enough for a lease to be ended, and shorter than the grace.
    await asyncio.sleep(node.config.reset_grace.total_seconds() / 3)
    assert not await lost(node)
    await worker.connect()
    worker.complete([job])
    assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    await finished(node, [job_id])
    await worker.break_stream()


async def test_a_grace_begins_anew_when_the_database_is_back(
    database: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    """Nobody can be admitted while the database is away."""
    grace_s = 2.5
    worker = RawWorker("", handlers={"mail": 1}, name="w")
    async with running_node(database, tmp_path, reset_grace=f"{grace_s}s") as node:
        worker.address = node.address
        await worker.connect()
        [job_id] = await submit(node, "mail", backoff=AT_ONCE)
        await worker.next_jobs(1)
        await worker.break_stream()
        await asyncio.to_thread(postgres.stop)
        try:
            await asyncio.sleep(1.1 * grace_s)
        finally:
            await asyncio.to_thread(postgres.start)
        renewed = node.engine.liveness._renewed_at
        await eventually(lambda: node.engine.liveness._renewed_at > renewed, what="renewals to work again")
        await asyncio.sleep(0.7 * grace_s)
        assert not await lost(node)
        found = await row(node, job_id)
        assert found is not None
        assert found.state == 1


async def test_a_worker_that_comes_back_while_it_is_being_reaped_is_not_told_to_stop(node: Node) -> None:
    """The reaper has chosen its attempt; the statement leaves it alone, and so must the message."""
    async with raw_worker(node.address, {"mail": 1}, "w") as worker:
        await submit(node, "mail", backoff=AT_ONCE)
        [job] = await worker.next_jobs(1)
        await eventually(node.engine.liveness.may_reap_by_lease)
        gate = Gate()
        node.engine.failpoints.set("reap.selected", gate)
        worker.freeze()
        async with asyncio.timeout(10):
            await gate.reached.wait()
        worker.thaw()
        [worker_id] = node.engine.registry.workers()
        await eventually(lambda: node.engine.slots.heard(worker_id))
        await node.engine.liveness.renew()
        gate.opened.set()
        # A job that is handed out after it comes behind whatever the reaper has sent.
        worker.credit({"mail": 2})
        [later] = await submit(node, "mail", backoff=AT_ONCE)
        [marker] = await worker.next_jobs(1)
        assert marker.job_id == later
        assert not worker.cancels
        worker.complete([job, marker])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED


async def test_a_worker_whose_return_takes_longer_than_the_grace_is_not_lost(database: str, tmp_path: Path) -> None:
    async with (
        running_node(database, tmp_path, worker_lease="5s", reset_grace="300ms") as node,
        raw_worker(node.address, {"mail": 1}, "w") as worker,
    ):
        await submit(node, "mail", backoff=AT_ONCE)
        [job] = await worker.next_jobs(1)
        async with await psycopg.AsyncConnection.connect(database) as somebody:
            # Admission needs the table; the end of a lease and its renewal do not.
            await somebody.execute("LOCK TABLE handlers")
            await worker.break_stream()
            back = asyncio.create_task(worker.connect())
            await eventually(lambda: bool(node.engine.liveness._arriving))
            # Longer than the grace, shorter than the lock timeout.
            await asyncio.sleep(1.0)
            assert not await lost(node)
            await somebody.rollback()
        await back
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        assert not worker.jobs
