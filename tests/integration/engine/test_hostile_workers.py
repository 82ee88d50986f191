"""What workers that lie, or report more than fits, can and cannot do, on a real node, database and stream."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psycopg
import pytest

from server.app import Node
from server.domain.job import AttemptRef
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.support.nodes import finished, history, row, running_node, submit
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually

# The low 12 bits name shard 4095, which a cluster of 64 shards does not have; the last two are no ids at all.
MADE_UP = [AttemptRef(4095, 1), AttemptRef((7 << 12) + 64, 2), AttemptRef(-1, 1), AttemptRef(2**62, -3)]


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


def refs(attempts: list[AttemptRef]) -> list[pb.AttemptRef]:
    return [pb.AttemptRef(job_id=one.job_id, claim=one.claim) for one in attempts]


async def test_results_of_made_up_attempts_hold_up_no_others(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 4}, "liar") as liar, raw_worker(node.address, {"post": 4}) as honest:
        await submit(node, "mail")
        [own] = await liar.next_jobs(1)
        lies = [pb.Result(attempt=ref, completed=pb.Completed()) for ref in refs(MADE_UP)]
        true = pb.Result(attempt=pb.AttemptRef(job_id=own.job_id, claim=own.claim), completed=pb.Completed())
        liar.send(results=pb.ResultBatch(results=[*lies, true]))
        assert await liar.acked(own) == pb.ResultAck.ACCEPTED
        assert {liar.acks[(one.job_id, one.claim)] for one in MADE_UP} == {pb.ResultAck.DUPLICATE}
        await submit(node, "post")
        [other] = await honest.next_jobs(1)
        honest.complete([other])
        assert await honest.acked(other) == pb.ResultAck.ACCEPTED


async def test_made_up_attempts_in_hello_and_progress_are_not_the_workers(node: Node) -> None:
    worker = RawWorker(node.address, handlers={"mail": 4})
    worker.finished = {(one.job_id, one.claim) for one in MADE_UP}
    async with worker:
        assert worker.welcome is not None
        assert {(one.job_id, one.claim) for one in worker.welcome.superseded} == {(r.job_id, r.claim) for r in MADE_UP}
        progress = [pb.Progress(attempt=ref, data=b"half") for ref in refs(MADE_UP)]
        worker.send(heartbeat=pb.Heartbeat(sequence=1, progress=progress))
        await submit(node, "mail")
        [job] = await worker.next_jobs(1)
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED


@pytest.mark.parametrize("reason", [pb.CANCEL_SUPERSEDED, pb.CANCEL_REQUESTED, pb.CANCEL_REASON_UNSPECIFIED])
async def test_a_stop_that_no_user_asked_for_does_not_end_the_job(
    node: Node, reason: "pb.CancelReason.ValueType"
) -> None:
    [job_id] = await submit(node, "mail")
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job] = await worker.next_jobs(1)
        worker.result(job, stopped=pb.Stopped(reason=reason))
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        [again] = await worker.next_jobs(1)
        assert (again.job_id, again.claim, again.attempt) == (job_id, 2, 1)
        worker.complete([again])
        await finished(node, [job_id])
    assert [one.state for one in await history(node, job_id)] == [3]


async def test_a_lock_on_one_partition_holds_up_no_results_of_others(node: Node, database: str) -> None:
    [locked] = await submit(node, "mail", shard=0)
    [free] = await submit(node, "mail", shard=63)
    async with raw_worker(node.address, {"mail": 2}) as worker:
        by_id = {job.job_id: job for job in await worker.next_jobs(2)}
        held = asyncio.Event()
        release = asyncio.Event()

        async def hold() -> None:
            async with await psycopg.AsyncConnection.connect(database) as connection:
                await connection.execute("SET idle_in_transaction_session_timeout = 0")
                await connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", (locked,))
                held.set()
                await release.wait()

        holder = asyncio.create_task(hold())
        await held.wait()
        both = [pb.AttemptRef(job_id=job_id, claim=by_id[job_id].claim) for job_id in (locked, free)]
        results = [pb.Result(attempt=ref, completed=pb.Completed(result=b"done")) for ref in both]
        worker.send(results=pb.ResultBatch(results=results))
        # The lock outlives the lock timeout of the first statement.
        assert await worker.acked(by_id[free]) == pb.ResultAck.ACCEPTED
        assert await row(node, locked) is not None
        release.set()
        await holder
        assert await worker.acked(by_id[locked]) == pb.ResultAck.ACCEPTED


async def test_results_that_fill_many_statements_are_all_stored(node: Node) -> None:
    ids = await submit(node, "mail", 120, shard=5)
    async with raw_worker(node.address, {"mail": 120}) as worker:
        jobs = await worker.next_jobs(120)
        for start in range(0, 120, 20):
            results = [
                pb.Result(
                    attempt=pb.AttemptRef(job_id=job.job_id, claim=job.claim),
                    completed=pb.Completed(result=b"%20d" % job.job_id * 10_000),
                )
                for job in jobs[start : start + 20]
            ]
            worker.send(results=pb.ResultBatch(results=results))
        for job in jobs:
            assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    await finished(node, ids)


async def test_a_worker_that_does_not_read_is_sent_no_more_than_fits(node: Node) -> None:
    async def requests() -> AsyncIterator[pb.SessionRequest]:
        registration = pb.HandlerRegistration(handler="mail", max_concurrency=500)
        yield pb.SessionRequest(hello=pb.Hello(worker="deaf", incarnation=7, handlers=[registration]))
        yield pb.SessionRequest(
            credit=pb.Credit(sequence=1, credits=[pb.HandlerCredit(handler="mail", slots=2**31 - 1)])
        )
        for number in itertools.count(1):
            yield pb.SessionRequest(heartbeat=pb.Heartbeat(sequence=number))
            await asyncio.sleep(0.1)

    async with grpc.aio.insecure_channel(node.address) as channel:
        call = WorkerServiceStub(channel).Session(requests())
        # This one is read; it has no bytes of jobs yet.
        await call.read()
        await submit(node, "mail", 150, shard=0, payload=bytes(200_000))
        await eventually(lambda: any(session.full for session in node.engine.slots.sessions()))
        assert len(node.engine.registry) < 100
        assert node.engine.handler_view((await node.catalog.handler(1, "mail")).handler_id).slots == 100_000
        got: set[int] = set()
        async with asyncio.timeout(20):
            while len(got) < 150:
                message = await call.read()
                assert isinstance(message, pb.SessionResponse)
                got.update(job.job_id for job in message.jobs.jobs)
        call.cancel()


async def test_a_malformed_message_ends_the_session_with_the_reason(node: Node) -> None:
    async def requests() -> AsyncIterator[bytes]:
        registration = pb.HandlerRegistration(handler="mail", max_concurrency=1)
        hello = pb.Hello(worker="broken", incarnation=8, handlers=[registration])
        yield pb.SessionRequest(hello=hello).SerializeToString()
        goodbye = pb.SessionRequest(goodbye=pb.Goodbye(reason="@@")).SerializeToString()
        yield goodbye.replace(b"@@", b"\xff\xfe")
        await asyncio.Event().wait()

    async with grpc.aio.insecure_channel(node.address) as channel:
        session: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/shardwheel.v1.WorkerService/Session"
        )
        call = session(requests())
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with asyncio.timeout(10):
                async for _ in call:
                    pass
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "UTF-8" in str(await call.details())
