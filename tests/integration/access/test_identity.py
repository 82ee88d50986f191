"""A worker speaks for itself alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from server.app import Node
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.job_pb2 import JobError
from shardwheel.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.support.access import bearer, granted
from tests.support.nodes import finished, history, row, running_node, submit
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


@asynccontextmanager
async def two_workers(node: Node) -> AsyncIterator[tuple[RawWorker, RawWorker]]:
    """One whose attempts these are, and one that reports them as well."""
    async with raw_worker(node.address, {"mail": 20}, "honest") as honest, raw_worker(node.address, {"x": 1}) as liar:
        yield honest, liar


def lie(job: pb.Assignment) -> pb.SessionRequest:
    ref = pb.AttemptRef(job_id=job.job_id, claim=job.claim)
    return pb.SessionRequest(
        results=pb.ResultBatch(results=[pb.Result(attempt=ref, completed=pb.Completed(result=b"forged"))])
    )


@pytest.mark.parametrize("outcome", ["completed", "failed", "snoozed"])
async def test_results_of_another_workers_attempt_change_nothing(node: Node, outcome: str) -> None:
    """The attempt runs on at its own worker, whose result is taken."""
    build = {
        "completed": {"completed": pb.Completed(result=b"forged")},
        "failed": {"failed": pb.Failed(error=JobError(type="Forged", message="forged"))},
        "snoozed": {"snoozed": pb.Snoozed()},
    }[outcome]
    async with (
        raw_worker(node.address, {"mail": 2}, "honest") as honest,
        raw_worker(node.address, {"other": 1}) as liar,
    ):
        [job_id] = await submit(node, "mail")
        [job] = await honest.next_jobs(1)
        ref = pb.AttemptRef(job_id=job.job_id, claim=job.claim)
        liar.send(results=pb.ResultBatch(results=[pb.Result(attempt=ref, **build)]))  # type: ignore[arg-type]
        assert await liar.acked(job) == pb.ResultAck.STALE
        found = await row(node, job_id)
        assert found is not None
        assert (found.state, found.open_claim) == (1, job.claim)
        assert len(node.engine.registry) == 1
        honest.complete([job])
        assert await honest.acked(job) == pb.ResultAck.ACCEPTED
        await finished(node, [job_id])
        assert [one.result for one in await history(node, job_id)] == [b"done"]


async def test_two_workers_that_report_one_attempt_in_the_same_moment(node: Node) -> None:
    async with (
        raw_worker(node.address, {"mail": 20}, "honest") as honest,
        raw_worker(node.address, {"other": 1}) as liar,
    ):
        ids = await submit(node, "mail", 20)
        jobs = await honest.next_jobs(20)
        for job in jobs:
            liar.send(results=lie(job).results)
            honest.complete([job])
        for job in jobs:
            assert await honest.acked(job) == pb.ResultAck.ACCEPTED
        await finished(node, ids)
        for job_id in ids:
            assert [one.result for one in await history(node, job_id)] == [b"done"]


async def test_progress_of_another_workers_attempt_is_not_kept(node: Node) -> None:
    async with (
        raw_worker(node.address, {"mail": 1}, "honest") as honest,
        raw_worker(node.address, {"other": 1}) as liar,
    ):
        [job_id] = await submit(node, "mail")
        [job] = await honest.next_jobs(1)
        ref = pb.AttemptRef(job_id=job.job_id, claim=job.claim)
        liar.send(heartbeat=pb.Heartbeat(sequence=1, progress=[pb.Progress(attempt=ref, data=b"forged")]))
        honest.send(heartbeat=pb.Heartbeat(sequence=1, progress=[pb.Progress(attempt=ref, data=b"half")]))

        async def kept() -> bool:
            found = await row(node, job_id)
            return found is not None and found.progress == b"half"

        await eventually(kept, what="the progress of the worker whose attempt it is")


async def test_an_incarnation_belongs_to_the_holder_it_came_with(node: Node, database: str) -> None:
    crew, thief = (
        await granted(database, "default:work", holder="crew"),
        await granted(database, "default:work", holder="thief"),
    )
    await node.access.keyring.refresh()
    async with raw_worker(node.address, {"mail": 1}, "w", metadata=bearer(crew)) as worker:
        stolen = RawWorker(
            node.address, handlers={"mail": 1}, name="w", incarnation=worker.incarnation, metadata=bearer(thief)
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stolen.connect()
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        await stolen.break_stream()
        async with grpc.aio.insecure_channel(node.address) as channel:
            stub = WorkerServiceStub(channel)
            request = pb.KeepAliveRequest(namespace="default", worker="w", incarnation=worker.incarnation)
            with pytest.raises(grpc.aio.AioRpcError) as unkept:
                await stub.KeepAlive(request, metadata=bearer(thief), timeout=10.0)
            assert unkept.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            await stub.KeepAlive(request, metadata=bearer(crew), timeout=10.0)
        # The worker itself has lost nothing by that.
        [job_id] = await submit(node, "mail")
        [job] = await worker.next_jobs(1)
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        await finished(node, [job_id])
