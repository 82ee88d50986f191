"""ListJobs: filters, pages, tokens, and that no page walks more than it may."""

import asyncio
import base64
import random
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from server.domain.job import AttemptOutcome, JobState
from server.store import jobs_list
from server.store.database import Connection
from server.store.jobs_list import NO_CURSOR, JobFilter, list_jobs
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Job, JobSpec
from tests.integration.api.node import PARTITION_OF, ApiNode, Fleet, refused

FILL = """
INSERT INTO jobs (id, shard, due_at, retry_initial_ms, retry_max_ms, retry_multiplier, handler_id, namespace_id,
    max_attempts, payload, schedule_id, scheduled_for)
SELECT (g << 12) | (g %% 64), g %% 64, now() + interval '1 day', 1, 1, 1, 1, 1, 4, '',
    CASE WHEN g %% 640 = 4 THEN 4100 END, CASE WHEN g %% 640 = 4 THEN now() + g * interval '1 second' END
FROM generate_series(1, %s::int8) g
"""
FILL_HISTORY = """
INSERT INTO job_history (id, shard, due_at, created_at, finished_at, claim, retry_initial_ms, retry_max_ms,
    retry_multiplier, handler_id, namespace_id, attempt, max_attempts, concurrency_limit, state, priority, name,
    content_type, payload, schedule_id)
SELECT (g << 12) | (g %% 64), g %% 64, now(), now(), now() - (g %% 2) * interval '20 hours', 1, 1, 1, 1, 1, 1, 1, 4, 1,
    3 + g %% 3, 3, '', '', '', CASE WHEN g %% 64 = 4 THEN 4100 END
FROM generate_series(%s::int8 + 1, %s::int8 * 3) g
"""


async def pages(node: ApiNode, request: pb.ListJobsRequest) -> list[list[Job]]:
    """Read a whole list."""
    found = []
    while True:
        response = await node.jobs.ListJobs(request)
        found.append(list(response.jobs))
        if not response.next_page_token:
            return found
        request.page_token = response.next_page_token


async def ids(node: ApiNode, **fields: object) -> list[int]:
    request = pb.ListJobsRequest(page_size=3, **fields)  # type: ignore[arg-type]
    return [job.id for page in await pages(node, request) for job in page]


async def submit(node: ApiNode, namespace: str = "", **fields: object) -> int:
    spec = JobSpec(**{"handler": "h", **fields})  # type: ignore[arg-type]
    return (await node.jobs.SubmitJob(pb.SubmitJobRequest(namespace=namespace, job=spec))).job.id


async def test_filters_all_have_to_match(node: ApiNode, fleet: Fleet) -> None:
    await node.admin.CreateNamespace(admin_pb.CreateNamespaceRequest(namespace="other"))
    before = Timestamp()
    before.FromDatetime((await node.database.run("SELECT now()"))[0][0])
    done, failed, running, cancelled = [await submit(node, labels={"n": str(number)}) for number in range(4)]
    pending = [await submit(node, handler="g", labels={"n": "5", "team": team}) for team in ("a", "b")]
    await submit(node, "other")
    handler = await node.catalog.handler(1, "h")
    for claimed in await fleet.claim(handler.handler_id):
        if claimed.job_id == done:
            await fleet.finish(claimed.ref, result=b"x" * 1000)
        if claimed.job_id == failed:
            fields = {"error_type": "E", "message": "m", "outcome": AttemptOutcome.FAILED}
            await fleet.finish(claimed.ref, JobState.FAILED, **fields)
        if claimed.job_id == cancelled:
            await fleet.finish(claimed.ref, JobState.CANCELLED)
    every = {done, failed, running, cancelled, *pending}
    assert await ids(node) == sorted(every, reverse=True)
    assert await ids(node, handler="g") == sorted(pending, reverse=True)
    assert await ids(node, handler="unheard.of") == []
    assert await ids(node, states=[Job.COMPLETED]) == [done]
    assert await ids(node, states=[Job.FAILED, Job.FAILED, Job.RUNNING]) == sorted([failed, running], reverse=True)
    assert await ids(node, states=[Job.PENDING]) == sorted(pending, reverse=True)
    assert await ids(node, states=[Job.CANCELLED], handler="h") == [cancelled]
    assert await ids(node, labels={"n": "5"}) == sorted(pending, reverse=True)
    assert await ids(node, labels={"n": "5", "team": "b"}) == [pending[1]]
    assert await ids(node, labels={"n": "5", "team": "c"}) == []
    assert await ids(node, created_from=before) == sorted(every, reverse=True)
    assert await ids(node, created_before=before) == []
    assert len(await ids(node, namespace="other")) == 1
    [shown] = (await node.jobs.ListJobs(pb.ListJobsRequest(states=[Job.COMPLETED]))).jobs
    assert (shown.payload, shown.result, shown.worker, dict(shown.labels)) == (b"", b"", "worker-1", {"n": "0"})


async def test_jobs_of_a_schedule_are_found_live_and_finished(node: ApiNode) -> None:
    await node.database.run("INSERT INTO handlers (namespace_id, name) VALUES (1, 'h')")
    await node.database.run(FILL, (640,))
    await node.database.run(FILL_HISTORY, (640, 640))
    rows = await node.database.run(
        "SELECT id FROM jobs WHERE schedule_id = 4100 UNION ALL SELECT id FROM job_history WHERE schedule_id = 4100"
    )
    assert len(rows) == 21
    assert await ids(node, schedule_id=4100) == sorted((job_id for (job_id,) in rows), reverse=True)
    assert len(await ids(node, schedule_id=4100, states=[Job.PENDING])) == 1
    # Of no jobs, and of a shard that this cluster does not have.
    assert await ids(node, schedule_id=4101) == []
    assert await ids(node, schedule_id=4095) == []


async def steer(node: ApiNode, job_id: int, *, again: bool) -> None:
    """Cancel a job or have it tried again; its state may not allow it."""
    try:
        if again:
            await node.jobs.RetryJob(pb.RetryJobRequest(id=job_id))
        else:
            await node.jobs.CancelJob(pb.CancelJobRequest(id=job_id))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise


async def test_no_job_is_missing_or_seen_twice_while_jobs_come_and_go(node: ApiNode, fleet: Fleet) -> None:
    """Pages of random sizes are read while other jobs are submitted, finished, cancelled and tried again."""
    draw = random.Random(20)
    handler = await node.catalog.handler(1, "h")
    first = [await submit(node) for _ in range(120)]
    stop = asyncio.Event()

    async def stir() -> None:
        while not stop.is_set():
            await node.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=[JobSpec(handler="h")] * draw.randint(1, 4)))
            for claimed in await fleet.claim(handler.handler_id, 1):
                state = draw.choice([JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
                await fleet.finish(claimed.ref, state)
            for job_id in draw.sample(first, 5):
                await steer(node, job_id, again=draw.random() < 0.5)

    stirring = asyncio.create_task(stir())
    for _ in range(6):
        request = pb.ListJobsRequest()
        seen: list[int] = []
        while True:
            request.page_size = draw.randint(1, 40)
            response = await node.jobs.ListJobs(request)
            seen += [job.id for job in response.jobs]
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
        assert seen == sorted(set(seen), reverse=True)
        assert set(first) <= set(seen)
    stop.set()
    await stirring


async def test_a_page_walks_a_bounded_number_of_rows_and_says_that_more_follow(node: ApiNode) -> None:
    await node.database.run("INSERT INTO handlers (namespace_id, name) VALUES (1, 'h'), (1, 'rare')")
    await node.database.run(FILL, (12_000,), timeout=30)
    rare = await node.database.run("UPDATE jobs SET handler_id = 2 WHERE id >> 12 IN (3, 700, 11000) RETURNING id")
    found = await pages(node, pb.ListJobsRequest(handler="rare"))
    assert [len(page) for page in found] == [1, 2]
    assert [job.id for page in found for job in page] == sorted((job_id for (job_id,) in rare), reverse=True)


async def test_pages_are_cut_before_they_grow_too_large(node: ApiNode) -> None:
    for _ in range(12):
        await submit(node)
    await node.database.run("UPDATE jobs SET progress = %s", (bytes(400_000),))
    found = await pages(node, pb.ListJobsRequest())
    assert [len(page) for page in found] == [5, 5, 2]
    assert len({job.id for page in found for job in page}) == 12


async def test_a_token_belongs_to_its_filters(node: ApiNode) -> None:
    for _ in range(5):
        await submit(node)
    token = (await node.jobs.ListJobs(pb.ListJobsRequest(page_size=2))).next_page_token
    assert len((await node.jobs.ListJobs(pb.ListJobsRequest(page_size=3, page_token=token))).jobs) == 3
    await node.admin.CreateNamespace(admin_pb.CreateNamespaceRequest(namespace="other"))
    raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    raw[5] ^= 1
    foreign = [
        pb.ListJobsRequest(page_token=token, handler="h"),
        pb.ListJobsRequest(page_token=token, states=[Job.PENDING]),
        pb.ListJobsRequest(page_token=token, labels={"a": "b"}),
        pb.ListJobsRequest(page_token=token, schedule_id=5),
        pb.ListJobsRequest(page_token=token, namespace="other"),
        pb.ListJobsRequest(page_token=token, created_from=Timestamp(seconds=10**9)),
        pb.ListJobsRequest(page_token=base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("=")),
        pb.ListJobsRequest(page_token=token[:-1]),
        pb.ListJobsRequest(page_token=token + "A"),
    ]
    for request in foreign:
        async with refused(grpc.StatusCode.INVALID_ARGUMENT) as refusals:
            await node.jobs.ListJobs(request)
        assert list(refusals[0].fields) == ["page_token"]
    # The default namespace said aloud is the same list.
    said = pb.ListJobsRequest(page_token=token, namespace="default")
    assert len((await node.jobs.ListJobs(said)).jobs) == 3


async def test_large_page_sizes_mean_a_thousand(node: ApiNode) -> None:
    await node.database.run("INSERT INTO handlers (namespace_id, name) VALUES (1, 'h')")
    await node.database.run(FILL, (1100,))
    found = await pages(node, pb.ListJobsRequest(page_size=2**31 - 1))
    assert [len(page) for page in found] == [1000, 100]
    assert len((await node.jobs.ListJobs(pb.ListJobsRequest())).jobs) == 100


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_statements_walk_the_indexes_by_id_and_sort_no_table(node: ApiNode, analyzed: bool) -> None:
    """On tables without statistics, as they are after a burst, and with: only a schedule's live jobs are sorted."""
    await node.database.run("INSERT INTO handlers (namespace_id, name) VALUES (1, 'h')")
    await node.database.run(FILL, (20_000,), timeout=30)
    await node.database.run(FILL_HISTORY, (20_000, 20_000), timeout=30)
    if analyzed:
        await node.database.run("ANALYZE", timeout=30)

    async def plan(wanted: JobFilter) -> str:
        statement, params = jobs_list.list_query(PARTITION_OF, wanted, NO_CURSOR, 10)

        async def work(connection: Connection) -> list[tuple[str]]:
            await connection.execute(jobs_list.NO_SORTS)
            explained = await connection.execute(b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + statement, params)
            return await explained.fetchall()

        return "\n".join(line for (line,) in await node.database.transact(work))

    general = await plan(JobFilter(namespace_id=1))
    assert "Sort Method" not in general
    assert "Seq Scan" not in general
    assert "Index Scan Backward using jobs_0000_pkey" in general
    assert general.count("Merge Append") == 3
    of_schedule = await plan(JobFilter(namespace_id=1, schedule_id=4100))
    assert of_schedule.count("Sort Method") == 1
    assert "CTE Scan on live" in of_schedule
    assert "shard_schedule_id_scheduled_for" in of_schedule
    assert "schedule_id_id_idx" in of_schedule
    assert "jobs_0000" not in of_schedule


async def test_a_cursor_may_point_anywhere(node: ApiNode) -> None:
    job_id = await submit(node)
    for cursor, expected in ((job_id + 1, [job_id]), (job_id, []), (1, [])):
        page = await list_jobs(node.database, PARTITION_OF, JobFilter(namespace_id=1), cursor, 10)
        assert ([job.job_id for job in page.jobs], page.next_cursor) == (expected, None)


async def test_created_bounds_are_half_open(node: ApiNode) -> None:
    job_id = await submit(node)
    created = (await node.jobs.GetJob(pb.GetJobRequest(id=job_id))).created_at
    later = Timestamp()
    later.FromDatetime(created.ToDatetime(tzinfo=UTC) + timedelta(microseconds=1))
    assert await ids(node, created_from=created, created_before=later) == [job_id]
    assert await ids(node, created_from=later) == []
    assert await ids(node, created_before=created) == []
    assert created.ToDatetime(tzinfo=UTC) <= datetime.now(UTC) + timedelta(seconds=5)
