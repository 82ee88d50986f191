"""Attempts from claim to end, on a real node, database and stream."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from server.app import Node
from server.domain.job import Backoff, TimeLimits
from shardwheel.v1 import job_pb2
from shardwheel.v1 import worker_service_pb2 as pb
from tests.support.nodes import Gate, finished, history, row, running_node, submit
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually

AT_ONCE = Backoff(max_attempts=4, initial=timedelta(0), maximum=timedelta(0))


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


async def test_a_job_is_claimed_run_and_kept_in_the_history(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 4}) as worker:
        [job_id] = await submit(node, "mail", name="hello", labels=b'{"tenant": "a"}')
        [job] = await worker.next_jobs(1)
        assert (job.job_id, job.claim, job.attempt, job.handler, job.name) == (job_id, 1, 1, "mail", "hello")
        assert dict(job.labels) == {"tenant": "a"}
        assert job.started_at.ToDatetime() >= job.due_at.ToDatetime()
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    [kept] = await history(node, job_id)
    assert (kept.state, kept.result, kept.result_content_type, kept.attempt) == (3, b"done", "text/plain", 1)
    assert await row(node, job_id) is None


async def test_priorities_are_kept_over_all_shards(node: Node) -> None:
    ids = {}
    for priority in (3, 5, 1, 4, 2):
        for one in await submit(node, "mail", 8, priority=priority):
            ids[one] = priority
    seen = []
    async with raw_worker(node.address, {"mail": 1}) as worker:
        for _ in ids:
            [job] = await worker.next_jobs(1)
            seen.append(ids[job.job_id])
            worker.complete([job])
    assert seen == sorted(seen)


async def test_credit_is_never_exceeded_and_always_used(node: Node) -> None:
    await submit(node, "mail", 40)
    async with raw_worker(node.address, {"mail": 5}) as worker:
        for left in range(40, 0, -1):
            await eventually(partial(_runs, worker, min(5, left)))
            assert len(worker.running) <= 5
            [job] = await worker.next_jobs(1)
            worker.complete([job])


def _runs(worker: RawWorker, count: int) -> bool:
    return len(worker.running) == count


async def test_a_job_is_not_early_and_hardly_late(node: Node) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1.2)
    async with raw_worker(node.address, {"mail": 50}) as worker:
        await submit(node, "mail", 20, due_at=due)
        jobs = await worker.next_jobs(20)
    late = [(job.started_at.ToNanoseconds() - job.due_at.ToNanoseconds()) / 1e6 for job in jobs]
    assert min(late) >= 0
    assert max(late) < 500


async def test_a_failure_is_retried_and_the_last_one_is_final(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", backoff=Backoff(max_attempts=2, initial=timedelta(0)))
        for attempt in (1, 2):
            [job] = await worker.next_jobs(1)
            assert (job.attempt, job.claim) == (attempt, attempt)
            worker.result(job, failed=pb.Failed(error=job_pb2.JobError(type="Boom", message=f"no {attempt}")))
            assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    [kept] = await history(node, job_id)
    assert (kept.state, kept.error_type, kept.error_message, kept.attempt) == (4, "Boom", "no 2", 2)
    rows = await node.database.fetch("SELECT * FROM attempts WHERE job_id = %s ORDER BY claim", (job_id,))
    assert [(one.attempt, one.outcome, one.error_message) for one in rows] == [(1, 1, "no 1"), (2, 1, "no 2")]


@pytest.mark.parametrize(
    ("failed", "policy"),
    [
        (pb.Failed(error=job_pb2.JobError(type="Fatal", message="x"), non_retryable=True), Backoff()),
        (pb.Failed(error=job_pb2.JobError(type="Fatal", message="x")), Backoff(non_retryable=("Fatal",))),
    ],
)
async def test_a_failure_that_must_not_be_retried_is_final(node: Node, failed: pb.Failed, policy: Backoff) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", backoff=policy)
        [job] = await worker.next_jobs(1)
        worker.result(job, failed=failed)
        await finished(node, [job_id])


async def test_retry_after_and_snooze_of_days_wait_and_the_snooze_burns_no_try(node: Node) -> None:
    days = Duration(seconds=3 * 86400)
    async with raw_worker(node.address, {"mail": 2}) as worker:
        failing, snoozing = await submit(node, "mail", 2)
        jobs = {job.job_id: job for job in await worker.next_jobs(2)}
        worker.result(jobs[failing], failed=pb.Failed(error=job_pb2.JobError(type="E"), retry_after=days))
        worker.result(jobs[snoozing], snoozed=pb.Snoozed(delay=days))
        for job in jobs.values():
            assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    for job_id, attempt in ((failing, 1), (snoozing, 0)):
        found = await row(node, job_id)
        assert found is not None
        assert (found.state, found.attempt, found.open_claim) == (0, attempt, None)
        assert found.due_at - datetime.now(UTC) > timedelta(days=2.9)


async def test_a_repeated_result_counts_once(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", backoff=AT_ONCE, due_at=None)
        [job] = await worker.next_jobs(1)
        worker.credit({"mail": 0})
        failed = pb.Failed(error=job_pb2.JobError(type="E", message="m"))
        worker.result(job, failed=failed)
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        worker.acks.clear()
        worker.result(job, failed=failed)
        assert await worker.acked(job) == pb.ResultAck.STALE
        rows = await node.database.fetch("SELECT * FROM attempts WHERE job_id = %s", (job_id,))
        assert len(rows) == 1
        worker.credit({"mail": 1})
        [again] = await worker.next_jobs(1)
        worker.complete([again])
        assert await worker.acked(again) == pb.ResultAck.ACCEPTED
        worker.acks.clear()
        worker.complete([again])
        assert await worker.acked(again) == pb.ResultAck.DUPLICATE
    assert len(await history(node, job_id)) == 1


async def test_an_interrupted_attempt_goes_back_at_once_without_burning_a_try(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail")
        [job] = await worker.next_jobs(1)
        worker.result(job, interrupted=pb.Interrupted())
        [again] = await worker.next_jobs(1)
        assert (again.job_id, again.attempt, again.claim) == (job_id, 1, 2)
        assert again.due_at == job.due_at


async def test_an_attempt_over_its_time_is_told_and_the_next_waits_for_it(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", backoff=AT_ONCE, limits=TimeLimits(attempt=timedelta(milliseconds=300)))
        [job] = await worker.next_jobs(1)
        assert job.time_left.ToMilliseconds() == 300
        await eventually(lambda: worker.cancels)
        assert worker.cancels[0].reason == pb.CANCEL_TIMEOUT
        assert not worker.jobs
        worker.result(job, stopped=pb.Stopped(reason=pb.CANCEL_TIMEOUT))
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        [again] = await worker.next_jobs(1)
        assert (again.attempt, again.claim) == (2, 2)
        rows = await node.database.fetch("SELECT * FROM attempts WHERE job_id = %s", (job_id,))
        assert [(one.outcome, one.error_type) for one in rows] == [(2, "timeout")]


async def test_an_attempt_that_does_not_stop_is_superseded_after_the_grace(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 2}) as worker:
        await submit(node, "mail", backoff=AT_ONCE, limits=TimeLimits(attempt=timedelta(milliseconds=200)))
        [job] = await worker.next_jobs(1)
        [again] = await worker.next_jobs(1)
        started = again.started_at.ToNanoseconds() - job.started_at.ToNanoseconds()
        assert started >= 900e6, "200 ms of time and 700 ms of grace"
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.STALE


async def test_start_and_total_timeouts_end_jobs_that_nobody_runs(node: Node) -> None:
    start = await submit(node, "nobody", limits=TimeLimits(start=timedelta(milliseconds=200)))
    total = await submit(node, "nobody", limits=TimeLimits(total=timedelta(milliseconds=200)))
    waiting = await submit(node, "nobody")
    await finished(node, [*start, *total])
    assert [(await history(node, one))[0].error_type for one in (*start, *total)] == ["start_timeout", "total_timeout"]
    assert await row(node, waiting[0]) is not None


async def test_the_total_timeout_ends_a_running_job_for_good(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", limits=TimeLimits(total=timedelta(milliseconds=300)))
        [job] = await worker.next_jobs(1)
        await eventually(lambda: worker.cancels)
        worker.result(job, stopped=pb.Stopped(reason=pb.CANCEL_TIMEOUT))
        await finished(node, [job_id])
    assert (await history(node, job_id))[0].error_type == "total_timeout"


async def test_jobs_of_a_key_run_one_at_a_time_in_order(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 10}) as worker:
        ids = await submit(node, "mail", 12, shard=5, concurrency_key="tenant-1", concurrency_limit=2)
        order: list[int] = []
        while len(order) < 12:
            await eventually(lambda: worker.jobs)
            assert len(worker.running) <= 2
            [job] = await worker.next_jobs(1)
            order.append(job.job_id)
            worker.complete([job])
    assert sorted(order) == sorted(ids)


async def test_progress_survives_into_the_next_attempt(node: Node) -> None:
    async with raw_worker(node.address, {"mail": 1}) as worker:
        await submit(node, "mail", backoff=AT_ONCE)
        [job] = await worker.next_jobs(1)
        progress = pb.Progress(attempt=pb.AttemptRef(job_id=job.job_id, claim=job.claim), data=b"half")
        worker.send(heartbeat=pb.Heartbeat(sequence=1, progress=[progress]))
        worker.result(job, failed=pb.Failed(error=job_pb2.JobError(type="E")))
        [again] = await worker.next_jobs(1)
        assert again.progress == b"half"


async def test_reaper_race_a_job_completed_between_select_and_update_stays_completed(node: Node) -> None:
    """C10."""
    gate = Gate()
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", limits=TimeLimits(attempt=timedelta(milliseconds=100)))
        [job] = await worker.next_jobs(1)
        node.engine.failpoints.set("reap.selected", gate)
        await asyncio.wait_for(gate.reached.wait(), 10)
        worker.complete([job])
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
        gate.opened.set()
        node.engine.failpoints.set("reap.selected", None)
        async with node.engine.ownership.lane(node.engine.ownership.partition_of[job_id & 4095]):
            pass
    assert [one.state for one in await history(node, job_id)] == [3]
    assert await row(node, job_id) is None


async def test_send_fails_after_claim(node: Node) -> None:
    """C18: the worker dies between the commit of a claim and the write to its stream."""
    gate = Gate()
    worker = RawWorker(node.address, handlers={"mail": 1}, name="doomed")
    await worker.connect()
    node.engine.failpoints.set("claim.committed", gate)
    [job_id] = await submit(node, "mail")
    await asyncio.wait_for(gate.reached.wait(), 10)
    await worker.break_stream()
    await eventually(lambda: not node.engine.slots.sessions())
    node.engine.failpoints.set("claim.committed", None)
    gate.opened.set()

    async def ready() -> bool:
        found = await row(node, job_id)
        return found is not None and (found.state, found.attempt, found.open_claim) == (0, 0, None)

    await eventually(ready, timeout_s=1.0)
    assert len(node.engine.registry) == 0
    async with raw_worker(node.address, {"mail": 1}, "other") as other:
        [job] = await other.next_jobs(1)
        assert (job.attempt, job.claim) == (1, 2)


async def test_a_job_of_an_unknown_handler_waits_and_is_left_alone(node: Node) -> None:
    """C20."""
    [job_id] = await submit(node, "later")
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [other] = await submit(node, "mail")
        worker.complete(await worker.next_jobs(1))
        await finished(node, [other])
        await node.engine.reaper.reap_once()
        await node.engine.keeper.turn(node.engine.ownership.partition_of[job_id & 4095])
    found = await row(node, job_id)
    assert found is not None
    assert (found.state, found.attempt) == (0, 0)
    async with raw_worker(node.address, {"later": 1}, "late") as late:
        [job] = await late.next_jobs(1)
        assert job.job_id == job_id


async def test_a_result_that_is_too_large_fails_the_attempt_with_the_reason(node: Node) -> None:
    """D24: no result may leave a job running."""
    async with raw_worker(node.address, {"mail": 2}) as worker:
        [fits] = await submit(node, "mail")
        [job] = await worker.next_jobs(1)
        worker.result(job, completed=pb.Completed(result=b"x" * node.config.max_result_bytes))
        await finished(node, [fits])
        for size in (node.config.max_result_bytes + 1, 5 << 20):
            [too_large] = await submit(node, "mail")
            [job] = await worker.next_jobs(1)
            worker.result(job, completed=pb.Completed(result=b"x" * size))
            assert await worker.acked(job) == pb.ResultAck.ACCEPTED
            [kept] = await history(node, too_large)
            assert (kept.state, kept.error_type, kept.result) == (4, "result_too_large", None)
            assert str(node.config.max_result_bytes) in kept.error_message
    assert (await history(node, fits))[0].state == 3


async def test_an_error_text_that_cannot_be_kept_is_cleaned_and_cut(node: Node) -> None:
    """D24: neither NUL nor 5 MiB of text leave a job running."""
    async with raw_worker(node.address, {"mail": 1}) as worker:
        [job_id] = await submit(node, "mail", backoff=Backoff(max_attempts=1))
        [job] = await worker.next_jobs(1)
        error = job_pb2.JobError(type="Bo\x00om", message="begin\x00\x1b" + "x" * (5 << 20) + "end")
        worker.result(job, failed=pb.Failed(error=error))
        assert await worker.acked(job) == pb.ResultAck.ACCEPTED
    [kept] = await history(node, job_id)
    assert (kept.state, kept.error_type) == (4, "Bo\ufffdom")
    assert len(kept.error_message) <= 16_384
    assert kept.error_message.startswith("begin\ufffd\ufffdx")
    assert kept.error_message.endswith("xend")
