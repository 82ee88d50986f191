"""Which workers count as dead, and what becomes of their attempts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import grpc
import psycopg
import pytest

from server.app import Node
from server.domain.job import Backoff
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.support.nodes import Gate, finished, history, row, running_node, submit
from tests.support.postgres import PostgresServer
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually

AT_ONCE = Backoff(max_attempts=9, initial=timedelta(0), maximum=timedelta(0))
LEASE_S = 2.0


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


async def test_late_completion(node: Node) -> None:
    """C9: A stalls beyond its lease, B runs the job again, A comes back and reports success."""
    async with raw_worker(node.address, {"mail": 1}, "a") as stalled:
        [job_id] = await submit(node, "mail", backoff=AT_ONCE)
        [first] = await stalled.next_jobs(1)
        await eventually(node.engine.liveness.may_reap_by_lease, timeout_s=2 * LEASE_S)
        stalled.freeze()
        async with raw_worker(node.address, {"mail": 1}, "b") as other:
            [second] = await other.next_jobs(1, timeout=4 * LEASE_S)
            assert (second.job_id, second.attempt) == (job_id, 2)
            stalled.thaw()
            await eventually(lambda: stalled.cancels)
            assert stalled.cancels[0].reason == pb.CANCEL_SUPERSEDED
            stalled.complete([first])
            assert await stalled.acked(first) == pb.ResultAck.STALE
            other.result(second, completed=pb.Completed(result=b"by b"))
            await finished(node, [job_id])
    assert [one.result for one in await history(node, job_id)] == [b"by b"]


async def test_a_worker_that_comes_back_during_a_reap_keeps_what_it_is_given_meanwhile(
    node: Node, database: str
) -> None:
    """The reaper goes from partition to partition with what it knew before the worker was heard again."""
    gate, reaper, reaped = Gate(), node.engine.reaper, asyncio.Event()
    reap = reaper._reap

    async def noted(suspects: list[int], as_of: datetime) -> None:
        await reap(suspects, as_of)
        if suspects:
            reaped.set()

    async with raw_worker(node.address, {"mail": 3}, "w") as worker:
        await submit(node, "mail", shard=0, backoff=AT_ONCE)
        await submit(node, "mail", shard=60, backoff=AT_ONCE)
        await worker.next_jobs(2)
        await eventually(node.engine.liveness.may_reap_by_lease, timeout_s=2 * LEASE_S)
        [session] = node.engine.slots.sessions()
        node.engine.failpoints.set("reap.selected", gate)
        with mock.patch.object(reaper, "_reap", noted):
            worker.freeze()
            await asyncio.wait_for(gate.reached.wait(), 5 * LEASE_S)
            reaped.clear()
            worker.thaw()
            await eventually(lambda: node.engine.slots.heard(session.worker_id))
            [job_id] = await submit(node, "mail", shard=61)
            [job] = await worker.next_jobs(1)
            async with lease_over(node, database):
                node.engine.failpoints.set("reap.selected", None)
                gate.opened.set()
                await asyncio.wait_for(reaped.wait(), 10)
                found = await row(node, job_id)
        assert found is not None
        assert (found.state, found.attempt, found.open_claim) == (1, 1, job.claim)
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED


@contextlib.asynccontextmanager
async def lease_over(node: Node, database: str) -> AsyncIterator[None]:
    """As if no renewal had come through since the workers' leases were over."""
    async with await psycopg.AsyncConnection.connect(database) as holder:
        await holder.execute("SET idle_in_transaction_session_timeout = 0")
        await holder.commit()
        while True:
            await node.database.run("UPDATE workers SET lease_until = now() - interval '1 hour'", api=True)
            held = await holder.execute("SELECT lease_until < now() FROM workers FOR UPDATE")
            if all(over for (over,) in await held.fetchall()):
                break
            await holder.rollback()
        yield
        await holder.rollback()


async def test_work_of_a_lost_worker_is_accepted_until_the_next_claim(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}, "a") as stalled:
        [job_id] = await submit(node, "mail", backoff=AT_ONCE)
        [job] = await stalled.next_jobs(1)
        stalled.credit({"mail": 0})
        stalled.freeze()

        async def given_back() -> bool:
            found = await row(node, job_id)
            return found is not None and found.state == 0

        await eventually(given_back, timeout_s=5 * LEASE_S)
        stalled.thaw()
        stalled.complete([job])
        assert await stalled.acked(job) == pb.ResultAck.ACCEPTED
    assert (await history(node, job_id))[0].state == 3


async def test_same_name_restart(node: Node) -> None:
    """C11: kill -9 of a worker with ten running jobs; a new one of the same name starts within a second."""
    old = RawWorker(node.address, handlers={"mail": 10}, name="w-0")
    await old.connect()
    ids = await submit(node, "mail", 10, backoff=AT_ONCE)
    await old.next_jobs(10)
    await old.break_stream()
    await eventually(lambda: not node.engine.slots.sessions(), what="the end of the old stream")
    async with raw_worker(node.address, {"mail": 10}, "w-0") as new:
        jobs = await new.next_jobs(10, timeout=LEASE_S)
        assert {job.job_id for job in jobs} == set(ids)
        assert {job.attempt for job in jobs} == {2}


async def test_a_live_worker_keeps_its_name(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}, "w-0"):
        second = RawWorker(node.address, handlers={"mail": 1}, name="w-0")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.connect()
        await second.break_stream()
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert "w-0" in (refused.value.details() or "")


async def test_keep_alive_is_for_incarnations_with_a_lease(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}, "w-0") as worker, grpc.aio.insecure_channel(node.address) as open_:
        stub = WorkerServiceStub(open_)
        answer = await stub.KeepAlive(pb.KeepAliveRequest(worker="w-0", incarnation=worker.incarnation))
        assert answer.lease_duration.ToTimedelta() == node.config.worker_lease
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.KeepAlive(pb.KeepAliveRequest(worker="w-0", incarnation=worker.incarnation + 1))
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_long_job_is_not_dead(node: Node) -> None:
    """C13: a job that takes three leases, with heartbeats, runs once."""
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail")
        [job] = await worker.next_jobs(1)
        await asyncio.sleep(3 * LEASE_S)
        assert not worker.jobs
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    assert (await history(node, job_id))[0].attempt == 1


async def test_a_stream_that_comes_back_in_time_keeps_its_attempts(node: Node) -> None:
    worker = RawWorker(node.address, handlers={"mail": 2}, name="w")
    await worker.connect()
    await submit(node, "mail", 2, backoff=AT_ONCE)
    jobs = await worker.next_jobs(2)
    await worker.break_stream()
    await worker.connect()
    await asyncio.sleep(2 * node.config.reset_grace.total_seconds())
    assert not worker.jobs
    worker.complete(jobs)
    for job in jobs:
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    await worker.break_stream()


async def test_what_was_lost_with_a_stream_goes_back_without_burning_a_try(node: Node) -> None:
    worker = RawWorker(node.address, handlers={"mail": 1}, name="w")
    await worker.connect()
    [job_id] = await submit(node, "mail")
    await worker.next_jobs(1)
    await worker.break_stream()
    worker.running.clear()
    await worker.connect()
    [again] = await worker.next_jobs(1, timeout=2.0)
    assert (again.job_id, again.attempt, again.claim) == (job_id, 1, 2)
    await worker.break_stream()


async def test_a_worker_that_does_not_come_back_loses_its_attempts_after_the_grace(node: Node) -> None:
    worker = RawWorker(node.address, handlers={"mail": 1}, name="w")
    await worker.connect()
    await submit(node, "mail", backoff=AT_ONCE)
    await worker.next_jobs(1)
    loop = asyncio.get_running_loop()
    await worker.break_stream()
    broken = loop.time()
    async with raw_worker(node.address, {"mail": 1}, "other") as other:
        [job] = await other.next_jobs(1, timeout=node.config.reset_grace.total_seconds() + 1.5)
        assert job.attempt == 2
        assert loop.time() - broken >= node.config.reset_grace.total_seconds()


async def test_goodbye_gives_everything_back_at_once(node: Node) -> None:
    worker = RawWorker(node.address, handlers={"mail": 1}, name="w")
    await worker.connect()
    await submit(node, "mail", backoff=AT_ONCE)
    await worker.next_jobs(1)
    async with raw_worker(node.address, {"mail": 1}, "other") as other:
        worker.send(goodbye=pb.Goodbye(reason="stops"))
        await other.next_jobs(1, timeout=node.config.reset_grace.total_seconds())
    await worker.break_stream()


async def test_a_poison_job_ends_after_its_last_try(node: Node) -> None:
    [job_id] = await submit(node, "mail", backoff=Backoff(max_attempts=2, initial=timedelta(0)))
    for number in range(2):
        worker = RawWorker(node.address, handlers={"mail": 1}, name=f"victim-{number}")
        await worker.connect()
        await worker.next_jobs(1)
        await worker.break_stream()
    await finished(node, [job_id])
    [kept] = await history(node, job_id)
    assert (kept.state, kept.error_type) == (4, "worker_lost")


async def test_attempts_survive_the_death_of_the_node(database: str, tmp_path: Path) -> None:
    worker = RawWorker("", handlers={"mail": 6}, name="w")
    async with running_node(database, tmp_path, name="first") as node:
        worker.address = node.address
        await worker.connect()
        ids = await submit(node, "mail", 6, backoff=AT_ONCE)
        jobs = await worker.next_jobs(6)
        # From here on the first node is as good as dead to the worker: one attempt gets lost with the stream.
        await worker.break_stream()
        worker.running.pop((jobs[0].job_id, jobs[0].claim))
    async with running_node(database, tmp_path, name="second") as node:
        worker.address = node.address
        await worker.connect()
        [again] = await worker.next_jobs(1)
        assert (again.job_id, again.attempt) == (jobs[0].job_id, 1)
        worker.complete(jobs[1:])
        worker.complete([again])
        await finished(node, ids)
        for job in jobs[1:]:
            assert worker.acks[(job.job_id, job.claim)] == pb.ResultAck.ACCEPTED
    await worker.break_stream()


async def test_nobody_dies_of_an_outage_of_the_database(node: Node, postgres: PostgresServer) -> None:
    """The database is away for longer than a lease, then back: attempts of living workers go on."""
    async with raw_worker(node.address, {"mail": 3}) as worker:
        ids = await submit(node, "mail", 3, backoff=AT_ONCE)
        jobs = await worker.next_jobs(3)
        postgres.stop()
        try:
            await asyncio.sleep(2 * LEASE_S)
        finally:
            postgres.start()
        await asyncio.sleep(1.5 * LEASE_S)
        assert not worker.jobs
        worker.complete(jobs)
        for job in jobs:
            assert await worker.acked(job, timeout=15) == pb.ResultAck.ACCEPTED
        await finished(node, ids)


async def test_a_claim_of_unknown_outcome_loses_and_doubles_nothing(node: Node) -> None:
    """Every back end is cut while claims are under way: what they did is found out before anything goes on."""
    async with raw_worker(node.address, {"mail": 50}) as worker:
        ids: list[int] = []
        for _ in range(10):
            ids += await submit(node, "mail", 50, backoff=AT_ONCE)
            await node.database.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shardwheel-hot'",
                api=True,
            )
            await eventually(lambda: worker.jobs)
            jobs, worker.jobs = worker.jobs, []
            worker.complete(jobs)
        done: dict[int, int] = {}
        for _ in range(2000):
            if len(await _finished_ids(node)) == len(ids):
                break
            jobs, worker.jobs = worker.jobs, []
            worker.complete(jobs)
            await asyncio.sleep(0.02)
        for response in worker.received:
            for job in response.jobs.jobs:
                done[job.job_id] = done.get(job.job_id, 0) + 1
    assert set(done) == set(ids)
    assert set(done.values()) == {1}


async def _finished_ids(node: Node) -> list[int]:
    return [one[0] for one in await node.database.fetch("SELECT id FROM job_history WHERE state = 3")]


async def test_a_cancelled_running_job_is_told_and_confirmed(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail")
        [job] = await worker.next_jobs(1)
        await node.database.run(
            "UPDATE jobs SET cancel_requested = true, timeout_at = now() WHERE id = %s", (job_id,), api=True
        )
        await eventually(lambda: worker.cancels)
        assert worker.cancels[0].reason == pb.CANCEL_REQUESTED
        worker.result(job, stopped=pb.Stopped(reason=pb.CANCEL_REQUESTED))
        await finished(node, [job_id])
    assert (await history(node, job_id))[0].state == 5
