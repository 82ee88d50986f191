"""Group commit: who shares a commit, and that nobody pays for it."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import grpc
import psycopg
import pytest

from server.api.errors import Exhausted
from server.api.submitter import SubmitLimits, Submitter
from server.domain.job import DedupeKey, NewJob, Submitted
from server.store.database import Database
from server.store.errors import Refused, Unavailable
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import JobSpec
from tests.integration.api.node import PARTITION_OF, ApiNode, QuietEngine, refusal
from tests.support.waiting import eventually


async def commits(node: ApiNode) -> int:
    """How many transactions wrote jobs: each leaves its own id on the rows it wrote."""
    return int((await node.database.run("SELECT count(DISTINCT xmin::text) FROM jobs"))[0][0])


async def blocked(node: ApiNode, count: int) -> bool:
    """Whether `count` back ends wait for a lock."""
    rows = await node.database.run(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(rows[0][0] == count)


def job(node: ApiNode, handler: int, number: int, payload: bytes = b"") -> NewJob:
    return NewJob(namespace_id=1, handler_id=handler, name=str(number), payload=payload)


async def test_jobs_gather_while_two_commits_are_under_way(node: ApiNode) -> None:
    handler = (await node.catalog.handler(1, "h")).handler_id
    calls = []
    async with node.database._hot.connection() as connection, connection.transaction():
        await connection.execute("LOCK TABLE jobs IN SHARE MODE")
        for number in range(52):
            calls.append(asyncio.create_task(node.submitter.submit("default", job(node, handler, number))))
            if number < 2:
                await eventually(lambda: blocked(node, len(calls)), what="a commit that waits for the lock")
            else:
                await asyncio.sleep(0)
    answers = await asyncio.gather(*calls)
    assert len({answer.job_id for answer in answers}) == 52
    assert await commits(node) == 3
    assert len(node.engine.added) == 52


async def test_a_key_that_an_open_transaction_holds_stops_its_own_job_only(node: ApiNode, database: str) -> None:
    """An application has submitted by SQL and does not commit: one job of the group has the same key."""
    handler = (await node.catalog.handler(1, "h")).handler_id
    held = DedupeKey(key="held", ttl=timedelta(0), content_hash=b"")
    group = [job(node, handler, number) for number in range(3)]
    group.insert(1, replace(group[0], dedupe=held))
    async with await psycopg.AsyncConnection.connect(database) as application:
        await application.execute("SET idle_in_transaction_session_timeout = 0")
        await application.execute("SELECT shardwheel.submit('h', dedupe_key => 'held')")
        calls = (node.submitter.submit("default", one) for one in group)
        first, refused, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(refused, Unavailable)
        assert all(isinstance(one, Submitted) for one in (first, *others))


async def test_jobs_of_one_turn_of_the_loop_share_a_commit(node: ApiNode) -> None:
    handler = (await node.catalog.handler(1, "h")).handler_id
    await asyncio.gather(*(node.submitter.submit("default", job(node, handler, number)) for number in range(300)))
    assert await commits(node) == 1
    # Without a key they are in one shard, and so in one statement.
    assert await node.database.run("SELECT count(DISTINCT shard) FROM jobs") == [(1,)]


async def test_a_group_is_not_larger_than_allowed(database: str) -> None:
    limits = SubmitLimits(group_jobs=10, group_bytes=4000)
    async with ApiNode(database, submit_limits=limits) as node:
        handler = (await node.catalog.handler(1, "h")).handler_id
        await asyncio.gather(*(node.submitter.submit("default", job(node, handler, n)) for n in range(35)))
        sizes = [row[0] for row in await node.database.run("SELECT count(*) FROM jobs GROUP BY xmin::text")]
        # 500 bytes count for a row without payload.
        assert sum(sizes) == 35
        assert max(sizes) <= 8


async def test_submits_beyond_the_queue_are_refused_and_the_others_are_stored(database: str) -> None:
    async with ApiNode(database, submit_limits=SubmitLimits(group_jobs=5, waiting_jobs=50)) as node:
        handler = (await node.catalog.handler(1, "h")).handler_id
        calls = (node.submitter.submit("default", job(node, handler, number)) for number in range(200))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(one, Exhausted) and one.reason == "SUBMIT_QUEUE_FULL" for one in refusals)
        assert len(refusals) == 150
        assert await node.database.run("SELECT count(*) FROM jobs") == [(50,)]


async def test_batches_beyond_the_queue_are_refused(database: str) -> None:
    async with ApiNode(database, submit_limits=SubmitLimits(batches_in_flight=1, waiting_batches=3)) as node:
        batch = pb.SubmitJobsRequest(jobs=[JobSpec(handler="h")] * 10)
        await node.jobs.SubmitJobs(batch)
        answers = await asyncio.gather(*(node.jobs.SubmitJobs(batch) for _ in range(10)), return_exceptions=True)
        refusals = [refusal(answer) for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert {one.reason for one in refusals} == {"SUBMIT_QUEUE_FULL"}
        assert {one.code for one in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        stored = 10 * (1 + len(answers) - len(refusals))
        assert await node.database.run("SELECT count(*) FROM jobs") == [(stored,)]
        assert stored >= 40


async def test_a_job_that_the_database_refuses_harms_no_other(node: ApiNode) -> None:
    """The edge lets no such job pass; should it ever fail to, the others of the group are stored all the same."""
    handler = (await node.catalog.handler(1, "h")).handler_id
    jobs = [job(node, handler, number) for number in range(40)]
    jobs[7] = NewJob(namespace_id=1, handler_id=handler, payload=b"", name="nul\x00")
    jobs[23] = NewJob(namespace_id=1, handler_id=handler, payload=b"", priority=9)
    calls = (node.submitter.submit("default", one) for one in jobs)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [number for number, answer in enumerate(answers) if isinstance(answer, Refused)] == [7, 23]
    stored = {name for (name,) in await node.database.run("SELECT name FROM jobs")}
    assert stored == {str(number) for number in range(40) if number not in (7, 23)}
    assert len(node.engine.added) == 38


async def test_callers_that_go_away_break_no_others(node: ApiNode) -> None:
    """Whoever stays gets the id of its own job; each cancelled call stored its job once or not at all."""
    draw = random.Random(7)
    request = [pb.SubmitJobRequest(job=JobSpec(handler="h", name=str(number))) for number in range(400)]
    calls = [asyncio.ensure_future(node.jobs.SubmitJob(one)) for one in request]
    for call in draw.sample(calls, 150):
        await asyncio.sleep(0)
        if draw.random() < 0.2:
            await asyncio.sleep(0.002)
        call.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    stored = await node.database.run("SELECT name, id FROM jobs")
    assert len({name for name, _ in stored}) == len(stored)
    ids = dict(stored)
    for number, answer in enumerate(answers):
        if isinstance(answer, pb.SubmitJobResponse):
            assert ids[str(number)] == answer.job.id
        else:
            assert isinstance(answer, asyncio.CancelledError)
    assert sum(isinstance(answer, pb.SubmitJobResponse) for answer in answers) >= 250


async def test_a_call_whose_deadline_passes_ends_there_and_its_group_goes_on(node: ApiNode) -> None:
    spec = JobSpec(handler="h")
    await node.jobs.SubmitJob(pb.SubmitJobRequest(job=spec))
    async with node.database._api.connection() as connection, connection.transaction():
        await connection.execute("LOCK TABLE jobs IN SHARE MODE")
        patient = asyncio.ensure_future(node.jobs.SubmitJob(pb.SubmitJobRequest(job=spec)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node.jobs.SubmitJob(pb.SubmitJobRequest(job=spec), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(
            lambda: [code for _, code, _ in node.calls].count("CANCELLED") == 1, what="the end of the late call"
        )
    assert (await patient).created


async def test_close_waits_for_what_was_submitted(database: str) -> None:
    store = Database(database)
    await store.open()
    submitter = Submitter(store, PARTITION_OF, QuietEngine(), SubmitLimits(group_jobs=3))
    await store.run("INSERT INTO handlers (namespace_id, name) VALUES (1, 'h')")
    calls = [
        asyncio.create_task(submitter.submit("default", NewJob(namespace_id=1, handler_id=1, payload=b"")))
        for _ in range(20)
    ]
    await asyncio.sleep(0)
    await submitter.close()
    assert all(call.done() for call in calls)
    assert await store.run("SELECT count(*) FROM jobs") == [(20,)]
    await store.close()


async def test_a_key_in_one_group_twice_makes_one_job(node: ApiNode) -> None:
    handler = (await node.catalog.handler(1, "h")).handler_id
    dedupe = DedupeKey(key="k", ttl=timedelta(0), content_hash=b"1")
    keyed = NewJob(namespace_id=1, handler_id=handler, payload=b"", dedupe=dedupe)
    answers = await asyncio.gather(*(node.submitter.submit("default", keyed) for _ in range(20)))
    assert len({answer.job_id for answer in answers}) == 1
    assert [answer.created for answer in answers].count(True) == 1
