"""A job that is submitted to any node starts at once, though only the owner of its shard hands it out."""

import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from server.app import Node
from server.peers.cluster_peers import ClusterPeers
from shardwheel.v1 import admin_service_pb2 as admin
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1 import schedule_service_pb2 as schedules
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from shardwheel.v1.job_pb2 import JobError, JobSpec
from shardwheel.v1.schedule_pb2 import IntervalTiming, ScheduleSpec
from shardwheel.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from shardwheel.v1.worker_service_pb2 import Failed
from tests.support.clusters import Cluster, jobs_at, running_cluster
from tests.support.raw_worker import RawWorker, raw_worker
from tests.support.waiting import eventually


async def start_ms(at: Node, owner: Node, cluster: Cluster, worker: RawWorker, count: int) -> list[float]:
    """Submit jobs one after the other at a node, of shards of another; return how long each took to start."""
    taken = []
    async with jobs_at(at) as jobs:
        for number in range(count):
            key = cluster.key_at(owner, f"{at.config.node}-{number}")
            began = time.perf_counter()
            await jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="h", concurrency_key=key)))
            [job] = await worker.next_jobs(1, timeout=5)
            taken.append((time.perf_counter() - began) * 1000)
            worker.complete([job])
            await worker.acked(job)
    return taken


async def test_a_job_starts_at_once_whichever_node_it_is_submitted_to(
    cluster: Cluster, workers: dict[str, RawWorker]
) -> None:
    first, second, _ = cluster.nodes
    worker = workers["node-b"]
    await start_ms(first, second, cluster, worker, 3)
    through_owner: list[float] = []
    through_other: list[float] = []
    for _ in range(10):
        through_owner += await start_ms(second, second, cluster, worker, 2)
        through_other += await start_ms(first, second, cluster, worker, 2)
    for way, taken in (("the owner", through_owner), ("another node", through_other)):
        print(f"submit to start through {way}: median {statistics.median(taken):.1f} ms, most {max(taken):.1f} ms")
    # What the machine is busy with beside only adds to the figures: the better half tells what the way itself costs.
    assert sorted(through_other)[5] < sorted(through_owner)[5] + 50


async def test_batches_reach_the_owners_of_all_their_jobs(cluster: Cluster, workers: dict[str, RawWorker]) -> None:
    keys = [cluster.key_at(node, f"{number}") for node in cluster.nodes for number in range(4)]
    specs = [JobSpec(handler="h", concurrency_key=key) for key in keys]

    async def batches() -> AsyncIterator[pb.BulkSubmitJobsRequest]:
        yield pb.BulkSubmitJobsRequest(jobs=specs[6:])

    async with jobs_at(cluster.nodes[0]) as jobs:
        await jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=specs[:6]))
        await jobs.BulkSubmitJobs(batches())
    for worker in workers.values():
        assert len(await worker.next_jobs(4)) == 4


async def test_a_job_that_is_to_be_tried_again_starts_at_once(cluster: Cluster, workers: dict[str, RawWorker]) -> None:
    first, second, _ = cluster.nodes
    worker = workers["node-b"]
    async with jobs_at(first) as jobs:
        spec = JobSpec(handler="h", concurrency_key=cluster.key_at(second))
        job_id = (await jobs.SubmitJob(pb.SubmitJobRequest(job=spec))).job.id
        [job] = await worker.next_jobs(1)
        worker.result(job, failed=Failed(error=JobError(type="E", message="m"), retry_after=Duration(seconds=600)))
        await worker.acked(job)
        await jobs.RetryJob(pb.RetryJobRequest(id=job_id))
        [again] = await worker.next_jobs(1)
    assert (again.job_id, again.claim) == (job_id, job.claim + 1)


async def test_schedules_fire_on_time_whichever_node_they_are_defined_at(
    cluster: Cluster, workers: dict[str, RawWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in cluster.nodes:
        monkeypatch.setattr(node.engine.firer, "_sweep", lambda: None)
    spec = ScheduleSpec(interval=IntervalTiming(every=Duration(seconds=1)), job=JobSpec(handler="h"))
    async with grpc.aio.insecure_channel(cluster.nodes[0].address) as channel:
        stub = ScheduleServiceStub(channel)
        for number in range(6):
            await stub.CreateSchedule(schedules.CreateScheduleRequest(name=f"s{number}", spec=spec))
        triggered = [
            (await stub.TriggerSchedule(schedules.TriggerScheduleRequest(name=f"s{number}"))).job.id
            for number in range(6)
        ]
    assert len({cluster.owner(job_id).config.node for job_id in triggered}) > 1

    # A job carries the shard of its schedule.
    ran: Counter[int] = Counter()

    def went_on() -> bool:
        for worker in workers.values():
            ran.update(job.job_id & 4095 for job in worker.jobs)
            worker.complete(worker.jobs)
            worker.jobs.clear()
        return all(ran[job_id & 4095] >= 3 for job_id in triggered)

    await eventually(went_on, timeout_s=15, what="three jobs of each schedule")


async def test_a_handler_that_is_resumed_anywhere_goes_on_everywhere(
    cluster: Cluster, workers: dict[str, RawWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = cluster.nodes
    async with grpc.aio.insecure_channel(first.address) as channel, jobs_at(first) as jobs:
        stub = AdminServiceStub(channel)
        await stub.PauseHandler(admin.PauseHandlerRequest(handler="h"))
        spec = JobSpec(handler="h", concurrency_key=cluster.key_at(second))
        await jobs.SubmitJob(pb.SubmitJobRequest(job=spec))
        handler = await second.catalog.handler(1, "h")
        paused = second.engine.claimer.paused_handlers
        await eventually(lambda: handler.handler_id in paused, timeout_s=0.9, what="the pause")
        await stub.ResumeHandler(admin.ResumeHandlerRequest(handler="h"))
        await workers["node-b"].next_jobs(1)


async def test_a_nudge_that_gets_lost_is_made_up_for_by_the_sweep(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterPeers, "tell_node", lambda peers, node, news: None)
    async with running_cluster(database, tmp_path, "ab", sweep="500ms") as cluster:
        first, second = cluster.nodes
        async with raw_worker(second.address, {"h": 4}) as worker, jobs_at(first) as jobs:
            spec = JobSpec(handler="h", concurrency_key=cluster.key_at(second))
            await jobs.SubmitJob(pb.SubmitJobRequest(job=spec))
            await worker.next_jobs(1)
