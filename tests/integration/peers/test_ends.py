"""The end of a job is heard wherever it matters, whichever node stores it."""

import asyncio
import statistics
import time

import psycopg
import pytest

from server.app import Node
from server.domain.sharding import shard_of_id
from server.peers.cluster_peers import ClusterPeers
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Job, JobError, JobSpec
from shardwheel.v1.worker_service_pb2 import Assignment, Committed, Failed
from tests.support.clusters import Cluster, jobs_at
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually


async def submit(cluster: Cluster, owner: Node, prefix: str = "key", count: int = 1) -> list[int]:
    """Submit jobs under one concurrency key, whose shard a node serves."""
    async with jobs_at(owner) as jobs:
        spec = JobSpec(handler="h", concurrency_key=cluster.key_at(owner, prefix))
        return [(await jobs.SubmitJob(pb.SubmitJobRequest(job=spec))).job.id for _ in range(count)]


def watches(node: Node) -> int:
    """How many ends other nodes want to hear of from a node."""
    return len(node.engine.news.watches)


async def wait_ms(waits_at: Node, finisher: RawWorker, worker: RawWorker, cluster: Cluster, owner: Node) -> float:
    """Wait for a job at one node and end it at another, by the worker's stream there.

    Return the time from the stored end to the answer.
    """
    [job_id] = await submit(cluster, owner)
    [job] = await worker.next_jobs(1)
    async with jobs_at(waits_at) as jobs:
        call = asyncio.ensure_future(jobs.WaitJob(pb.WaitJobRequest(id=job_id)))
        await eventually(lambda: watches(owner), what="the watch")
        await asyncio.sleep(0.05)
        finisher.complete([job])
        await finisher.acked(job)
        ended = time.perf_counter()
        answer = await asyncio.wait_for(call, 5)
    assert (answer.done, answer.job.state) == (True, Job.COMPLETED)
    return (time.perf_counter() - ended) * 1000


async def test_a_wait_at_a_third_node_ends_when_another_node_stores_the_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.end_watch.EndWatch._pause", no_slow_poll)
    first, second, third = cluster.nodes
    async with raw_worker(first.address, {"h": 4}, name="w") as worker, worker.beside(second.address) as finisher:
        taken = [await wait_ms(third, finisher, worker, cluster, first) for _ in range(10)]
    print(f"stored end to answer at a third node: median {statistics.median(taken):.1f} ms, most {max(taken):.1f} ms")
    assert statistics.median(taken) < 500
    # Each is told once, and not watched any longer.
    await eventually(lambda: watches(first) == 0, timeout_s=5, what="the end of all watches")


async def no_slow_poll(ends: object, failures: int) -> None:
    """Look only when asked to."""
    asked: asyncio.Event = ends._asked  # type: ignore[attr-defined]
    await asked.wait()


async def test_an_end_before_the_watch_is_known_to_the_owner_is_found(
    cluster: Cluster, workers: dict[str, RawWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The news of the end passes the owner while the watch is still under way to it."""
    monkeypatch.setattr("server.api.end_watch.EndWatch._pause", no_slow_poll)
    first, _, third = cluster.nodes
    [job_id] = await submit(cluster, first)
    [job] = await workers["node-a"].next_jobs(1)
    held = asyncio.Event()
    send = ClusterPeers._send

    async def late(peers: ClusterPeers, node: str, news: object) -> None:
        await held.wait()
        await send(peers, node, news)  # type: ignore[arg-type]

    monkeypatch.setattr(ClusterPeers, "_send", late)
    async with jobs_at(third) as jobs:
        call = asyncio.ensure_future(jobs.WaitJob(pb.WaitJobRequest(id=job_id)))
        await eventually(lambda: third.engine.waiters._waiting, what="the wait")
        await asyncio.sleep(0.1)
        workers["node-a"].complete([job])
        await workers["node-a"].acked(job)
        assert not call.done()
        held.set()
        assert (await asyncio.wait_for(call, 5)).done


async def test_a_wait_outlives_the_owner_of_the_shard(cluster: Cluster, workers: dict[str, RawWorker]) -> None:
    first, _, third = cluster.nodes
    [job_id] = await submit(cluster, first)
    [job] = await workers["node-a"].next_jobs(1)
    async with jobs_at(third) as jobs, workers["node-a"].beside(third.address) as other:
        call = asyncio.ensure_future(jobs.WaitJob(pb.WaitJobRequest(id=job_id)))
        await eventually(lambda: watches(first), what="the watch")
        await first.manager.drain()
        other.complete([job])
        await other.acked(job)
        assert (await asyncio.wait_for(call, 5)).done


async def test_jobs_of_a_key_follow_each_other_though_another_node_stores_their_ends(cluster: Cluster) -> None:
    first, second, _ = cluster.nodes
    async with raw_worker(first.address, {"h": 4}, name="w") as worker, worker.beside(second.address) as finisher:
        job_ids = await submit(cluster, first, count=6)
        pauses: list[float] = []
        started: list[int] = []
        ended = 0.0
        for position in range(6):
            [job] = await worker.next_jobs(1, timeout=5)
            if position:
                pauses.append((time.perf_counter() - ended) * 1000)
            # One at a time, in whatever order.
            started.append(job.job_id)
            assert len(worker.running) == 1
            if position == 2:
                # A failure makes room as well as a success.
                finisher.result(job, failed=Failed(error=JobError(type="E", message="m"), non_retryable=True))
            else:
                finisher.complete([job])
            await finisher.acked(job)
            ended = time.perf_counter()
    assert sorted(started) == sorted(job_ids)
    print(f"stored end of a keyed job to the start of the next: {[round(pause) for pause in pauses]} ms")
    await eventually(lambda: not len(first.engine.registry), timeout_s=2, what="the end of all entries of the owner")


async def complete_itself(database: str, job: Assignment) -> None:
    """What a handler does in its own transaction."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await connection.execute(
            "SELECT shardwheel.complete_attempt(%s, %s, %s, %s)", (job.job_id, job.claim, b"", "text/plain")
        )


@pytest.mark.parametrize("told_at", ["the owner", "another node"])
async def test_a_key_is_freed_when_a_worker_has_completed_its_job_itself(
    cluster: Cluster, database: str, told_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.end_watch.EndWatch._pause", no_slow_poll)
    first, second, third = cluster.nodes
    async with (
        raw_worker(first.address, {"h": 4}, name="w") as worker,
        raw_worker(second.address, {"h": 4}, name="v") as other,
        jobs_at(third) as jobs,
    ):
        teller = worker if told_at == "the owner" else other
        job_ids = await submit(cluster, first, count=2)
        [job] = await worker.next_jobs(1)
        call = asyncio.ensure_future(jobs.WaitJob(pb.WaitJobRequest(id=job.job_id)))
        await eventually(lambda: watches(first), what="the watch")
        await complete_itself(database, job)
        teller.result(job, committed=Committed())
        await teller.acked(job)
        [following] = await worker.next_jobs(1, timeout=5)
        assert following.job_id == job_ids[1]
        assert (await asyncio.wait_for(call, 5)).done


async def test_a_cancel_through_any_node_makes_room_under_the_key_and_ends_waits(
    cluster: Cluster, workers: dict[str, RawWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.end_watch.EndWatch._pause", no_slow_poll)
    first, second, third = cluster.nodes
    worker = workers["node-a"]
    async with jobs_at(second) as jobs, jobs_at(third) as others:
        running, chosen, waiting = await submit(cluster, first, count=3)
        [job] = await worker.next_jobs(1)
        assert job.job_id == running
        await eventually(lambda: states(first, [chosen, waiting], [2, 2]), what="the others behind the key")
        handler_id = first.engine.registry.of_shard(shard_of_id(running))[0].handler_id
        worker.credit({"h": 0})
        await eventually(lambda: first.engine.handler_view(handler_id).slots == 0, what="no slots")
        worker.complete([job])
        await eventually(lambda: states(first, [chosen, waiting], [0, 2]), what="the next job of the key")
        call = asyncio.ensure_future(others.WaitJob(pb.WaitJobRequest(id=chosen)))
        await eventually(lambda: watches(first), what="the watch")
        # The look that follows a new watch is over.
        await asyncio.sleep(0.3)
        await jobs.CancelJob(pb.CancelJobRequest(id=chosen))
        assert (await asyncio.wait_for(call, 5)).job.state == Job.CANCELLED
        worker.credit({"h": 4})
        [following] = await worker.next_jobs(1, timeout=5)
        assert following.job_id == waiting


async def states(node: Node, job_ids: list[int], wanted: list[int]) -> bool:
    """Whether jobs are in these states: 0 is pending, 2 parked."""
    rows = await node.database.fetch("SELECT state FROM jobs WHERE id = ANY(%s) ORDER BY id", (job_ids,))
    return [row[0] for row in rows] == wanted


async def test_a_running_job_is_told_to_stop_wherever_its_worker_is_connected(
    cluster: Cluster, workers: dict[str, RawWorker]
) -> None:
    first, second, _ = cluster.nodes
    worker = workers["node-a"]
    [job_id] = await submit(cluster, first)
    [job] = await worker.next_jobs(1)
    async with jobs_at(second) as jobs:
        began = time.perf_counter()
        await jobs.CancelJob(pb.CancelJobRequest(id=job_id))
        await eventually(lambda: worker.cancels, timeout_s=2, what="the cancel")
    print(f"cancel through a node without the worker: {(time.perf_counter() - began) * 1000:.0f} ms")
    assert worker.cancels[0].attempt.claim == job.claim


async def test_why_a_job_waits_is_told_by_its_owner(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = cluster.nodes
    async with jobs_at(second) as jobs, raw_worker(first.address, {"h": 1}, name="w") as worker:
        await submit(cluster, first)
        await worker.next_jobs(1)
        [free] = await submit(cluster, first, "more")
        # Nobody but the owner knows that there is a worker, and that it has no room.
        assert (await jobs.GetJob(pb.GetJobRequest(id=free))).waiting_because == Job.NO_FREE_SLOT
        [elsewhere] = await submit(cluster, third)
        assert (await jobs.GetJob(pb.GetJobRequest(id=elsewhere))).waiting_because == Job.NO_WORKER
        monkeypatch.setattr(ClusterPeers, "handler_view", nobody_answers)
        assert (await jobs.GetJob(pb.GetJobRequest(id=free))).waiting_because == Job.NO_WORKER


async def nobody_answers(peers: ClusterPeers, shard: int, handler_id: int) -> None:
    """An owner that cannot be asked."""
