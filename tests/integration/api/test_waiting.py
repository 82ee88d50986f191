"""WaitJob: the end of a job, wherever it comes from, or the end of the wait."""

import asyncio
import time

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Job, JobSpec
from tests.integration.api.node import ApiNode, Fleet
from tests.support.waiting import eventually


async def submit(node: ApiNode) -> Job:
    return (await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="h")))).job


async def finish(fleet: Fleet, node: ApiNode) -> None:
    handler = await node.catalog.handler(1, "h")
    [claimed] = await fleet.claim(handler.handler_id)
    await fleet.finish(claimed.ref, result=b"42")


async def test_a_finished_job_is_answered_at_once(node: ApiNode, fleet: Fleet) -> None:
    job = await submit(node)
    await finish(fleet, node)
    answer = await node.jobs.WaitJob(pb.WaitJobRequest(id=job.id))
    assert (answer.done, answer.job.state, answer.job.result) == (True, Job.COMPLETED, b"42")
    assert not node.engine.waiters


async def test_the_engine_wakes_a_wait(node: ApiNode, fleet: Fleet) -> None:
    job = await submit(node)
    call = asyncio.ensure_future(node.jobs.WaitJob(pb.WaitJobRequest(id=job.id)))
    await eventually(lambda: node.engine.waiters, what="the waiter")
    await finish(fleet, node)
    started = time.monotonic()
    node.engine.job_finished(job.id)
    assert (await call).done
    assert time.monotonic() - started < 0.5
    assert not node.engine.waiters


async def test_a_job_that_ends_elsewhere_is_noticed_all_the_same(node: ApiNode, fleet: Fleet) -> None:
    jobs = [await submit(node) for _ in range(5)]
    calls = [asyncio.ensure_future(node.jobs.WaitJob(pb.WaitJobRequest(id=job.id))) for job in jobs * 2]
    await eventually(lambda: len(node.engine.waiters) == 10, what="the waiters")
    handler = await node.catalog.handler(1, "h")
    for claimed in await fleet.claim(handler.handler_id):
        await fleet.finish(claimed.ref)
    answers = await asyncio.wait_for(asyncio.gather(*calls), 5)
    assert all(answer.done for answer in answers)


async def test_a_cancel_wakes_a_wait(node: ApiNode) -> None:
    job = await submit(node)
    call = asyncio.ensure_future(node.jobs.WaitJob(pb.WaitJobRequest(id=job.id)))
    await eventually(lambda: node.engine.waiters, what="the waiter")
    await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id))
    answer = await call
    assert (answer.done, answer.job.state) == (True, Job.CANCELLED)


async def test_a_wait_ends_after_max_wait(node: ApiNode) -> None:
    job = await submit(node)
    for span in (Duration(), Duration(nanos=200_000_000)):
        answer = await node.jobs.WaitJob(pb.WaitJobRequest(id=job.id, max_wait=span), timeout=5)
        assert (answer.done, answer.job.id, answer.job.state) == (False, job.id, Job.PENDING)


async def test_a_wait_answers_just_before_the_deadline_of_the_call(node: ApiNode) -> None:
    job = await submit(node)
    started = time.monotonic()
    answer = await node.jobs.WaitJob(pb.WaitJobRequest(id=job.id), timeout=0.6)
    assert not answer.done
    assert 0.3 < time.monotonic() - started < 0.6


async def test_a_caller_that_goes_away_leaves_nothing_behind(node: ApiNode) -> None:
    job = await submit(node)
    call = asyncio.ensure_future(node.jobs.WaitJob(pb.WaitJobRequest(id=job.id)))
    await eventually(lambda: node.engine.waiters, what="the waiter")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await eventually(lambda: not node.engine.waiters, what="the end of the wait on the node")
    assert len(node.job_service._ends) == 0


async def test_a_job_that_is_tried_again_while_waited_for_is_waited_for(node: ApiNode, fleet: Fleet) -> None:
    job = await submit(node)
    await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id))
    await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    call = asyncio.ensure_future(node.jobs.WaitJob(pb.WaitJobRequest(id=job.id)))
    await eventually(lambda: node.engine.waiters, what="the waiter")
    # A stale wake-up of the first life.
    node.engine.job_finished(job.id)
    await finish(fleet, node)
    answer = await asyncio.wait_for(call, 5)
    assert (answer.done, answer.job.state) == (True, Job.COMPLETED)


async def test_waits_are_limited(node: ApiNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.job_service.MAX_WAITS", 0)
    job = await submit(node)
    with pytest.raises(grpc.aio.AioRpcError, match="ask GetJob") as caught:
        await node.jobs.WaitJob(pb.WaitJobRequest(id=job.id))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
