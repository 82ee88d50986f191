"""Idempotent submits: one key, one job, whatever crashes in between."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import grpc
import psycopg
import pytest

from server.domain.job import DedupeKey, NewJob
from server.domain.sharding import make_id, shard_of
from server.store.insert import TAKE_KEYS, PlacedJob, _key_params
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Job, JobSpec
from tests.integration.api.cutting_proxy import CuttingProxy
from tests.integration.api.node import SHARDS, ApiNode, Fleet, refusal, refused
from tests.support.waiting import eventually

KEY = JobSpec(handler="h", payload=b"1", dedupe_key="order 17")


async def submit(node: ApiNode, spec: JobSpec = KEY, namespace: str = "") -> pb.SubmitJobResponse:
    return await node.jobs.SubmitJob(pb.SubmitJobRequest(namespace=namespace, job=spec))


async def handler_id(node: ApiNode) -> int:
    return (await node.catalog.handler(1, "h")).handler_id


async def submit_until_answered(node: ApiNode) -> pb.SubmitJobResponse:
    """Submit as a client does: an UNAVAILABLE is tried again."""
    while True:
        try:
            return await submit(node)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.02)


async def test_the_same_key_answers_with_the_same_job(node: ApiNode) -> None:
    first, second = await submit(node), await submit(node)
    assert (first.created, second.created, second.differs) == (True, False, False)
    assert second.job == first.job
    assert len(node.engine.added) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b"2"},
        {"content_type": "text/plain"},
        {"name": "other"},
        {"priority": 1},
        {"labels": {"a": "b"}},
        {"retry": {"max_attempts": 9}},
        {"timeouts": {"total_timeout": {"seconds": 5}}},
        {"delay": {"seconds": 5}},
        {"due_at": {"seconds": 4_102_444_800}},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_the_same_key_with_other_content_is_told_so(node: ApiNode, change: dict[str, object]) -> None:
    first = await submit(node)
    other = JobSpec()
    other.CopyFrom(KEY)
    other.MergeFrom(JobSpec(**change))  # type: ignore[arg-type]
    second = await submit(node, other)
    assert (second.job.id, second.created, second.differs) == (first.job.id, False, True)
    assert second.job.payload == b"1"
    # The trace context is not content, nor is a default said aloud.
    same = JobSpec(priority=3, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    same.MergeFrom(KEY)
    assert not (await submit(node, same)).differs


async def test_a_key_belongs_to_a_namespace_a_handler_and_a_concurrency_key(node: ApiNode) -> None:
    await node.admin.CreateNamespace(admin_pb.CreateNamespaceRequest(namespace="other"))
    answers = [
        await submit(node),
        await submit(node, namespace="other"),
        await submit(node, JobSpec(handler="g", dedupe_key=KEY.dedupe_key)),
        await submit(node, JobSpec(handler="h", dedupe_key=KEY.dedupe_key, concurrency_key="c")),
    ]
    assert [answer.created for answer in answers] == [True] * 4


async def test_a_retry_after_a_lost_reply_finds_the_job_though_it_has_finished(node: ApiNode, fleet: Fleet) -> None:
    first = await submit(node)
    [claimed] = await fleet.claim(await handler_id(node))
    await fleet.finish(claimed.ref, result=b"done")
    again = await submit(node)
    assert (again.job.id, again.created, again.differs) == (first.job.id, False, False)
    assert (again.job.state, again.job.result) == (Job.COMPLETED, b"done")
    rows = await node.database.run("SELECT expires_at - %s::timestamptz FROM dedupe_keys", (await _now(node),))
    assert rows[0][0] > timedelta(minutes=9, seconds=50)


async def test_the_key_is_free_after_its_time_but_not_while_the_job_is_live(node: ApiNode, fleet: Fleet) -> None:
    spec = JobSpec()
    spec.CopyFrom(KEY)
    spec.dedupe_ttl.seconds = 1800
    first = await submit(node, spec)
    await _pass_time(node, timedelta(minutes=29))
    assert not (await submit(node, spec)).created
    await _pass_time(node, timedelta(minutes=2))
    assert not (await submit(node, spec)).created, "the job is still live"
    [claimed] = await fleet.claim(await handler_id(node))
    assert not (await submit(node, spec)).created, "the job is still running"
    await fleet.finish(claimed.ref)
    second = await submit(node, spec)
    assert second.created
    assert second.job.id != first.job.id


async def test_a_key_that_outlives_the_history_still_names_its_job(node: ApiNode, fleet: Fleet) -> None:
    first = await submit(node)
    [claimed] = await fleet.claim(await handler_id(node))
    await fleet.finish(claimed.ref)
    await node.database.run("DELETE FROM job_history")
    again = await submit(node)
    assert (again.job.id, again.job.state, again.created) == (first.job.id, Job.STATE_UNSPECIFIED, False)


async def test_fifty_submits_of_one_key_on_two_nodes_make_one_job(database: str) -> None:
    async with ApiNode(database) as one, ApiNode(database) as two:
        answers = await asyncio.gather(*(submit((one, two)[number % 2]) for number in range(50)))
        assert len({answer.job.id for answer in answers}) == 1
        assert sum(answer.created for answer in answers) == 1
        assert not any(answer.differs for answer in answers)
        assert await one.database.run("SELECT count(*) FROM jobs") == [(1,)]


async def test_fifty_submits_wait_for_a_holder_of_the_key_that_crashes(database: str) -> None:
    """The holder's back end is terminated in the middle of its transaction: its key and job vanish together."""
    async with ApiNode(database) as one, ApiNode(database) as two:
        handler = await handler_id(one)
        holder = await _hold_key(database, handler)
        callers = [asyncio.create_task(submit_until_answered((one, two)[number % 2])) for number in range(50)]
        await eventually(lambda: _blocked(one), what="submits that wait for the key")
        await _terminate(one, holder.info.backend_pid)
        answers = await asyncio.gather(*callers)
        assert len({answer.job.id for answer in answers}) == 1
        assert sum(answer.created for answer in answers) == 1
        assert await one.database.run("SELECT count(*) FROM jobs") == [(1,)]
        await holder.close()


async def test_fifty_submits_of_one_key_while_their_own_back_ends_are_terminated(database: str) -> None:
    """The commits of both nodes are cut off again and again; still one job, `created` once, and no other answer."""
    async with ApiNode(database) as one, ApiNode(database) as two:
        handler = await handler_id(one)
        holder = await _hold_key(database, handler)
        callers = [asyncio.create_task(submit_until_answered((one, two)[number % 2])) for number in range(50)]
        for _ in range(2):
            await eventually(lambda: _blocked(one), what="submits that wait for the key")
            for (pid,) in await one.database.run(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ):
                await _terminate(one, pid)
        await eventually(lambda: _blocked(one), what="submits that wait for the key")
        await holder.rollback()
        answers = await asyncio.gather(*callers)
        assert len({answer.job.id for answer in answers}) == 1
        assert sum(answer.created for answer in answers) == 1
        assert await one.database.run("SELECT count(*) FROM jobs") == [(1,)]
        await holder.close()


@pytest.fixture
async def proxy(database: str) -> AsyncIterator[CuttingProxy]:
    """A way to the database that can be cut."""
    async with CuttingProxy(database) as running:
        yield running


@pytest.fixture
async def behind(proxy: CuttingProxy) -> AsyncIterator[ApiNode]:
    """A node whose way to the database can be cut."""
    async with ApiNode(proxy.dsn) as running:
        await handler_id(running)
        yield running


@pytest.mark.parametrize("deliver", [True, False], ids=["after the commit", "before the commit"])
async def test_a_submit_with_key_survives_a_cut_around_its_commit(
    proxy: CuttingProxy, behind: ApiNode, deliver: bool
) -> None:
    proxy.cut(b"COMMIT", deliver=deliver)
    answer = await submit(behind)
    assert proxy.cuts == 1
    assert (answer.created, answer.differs) == (True, False)
    assert (await behind.jobs.GetJob(pb.GetJobRequest(id=answer.job.id))).payload == b"1"
    assert await behind.database.run("SELECT count(*) FROM jobs") == [(1,)]
    assert [job.job_id for job in behind.engine.added] == [answer.job.id]
    assert not (await submit(behind)).created


@pytest.mark.parametrize("deliver", [True, False], ids=["after the commit", "before the commit"])
async def test_a_batch_with_keys_survives_a_cut_around_its_commit(
    proxy: CuttingProxy, behind: ApiNode, deliver: bool
) -> None:
    existing = await submit(behind)
    specs = [JobSpec(handler="h", dedupe_key=str(number)) for number in range(20)]
    proxy.cut(b"COMMIT", deliver=deliver)
    answer = await behind.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=[*specs, KEY]))
    assert proxy.cuts == 1
    assert [one.created for one in answer.results] == [True] * 20 + [False]
    assert answer.results[-1].job_id == existing.job.id
    assert await behind.database.run("SELECT count(*) FROM jobs") == [(21,)]


async def test_a_submit_without_key_that_was_stored_is_found_again(proxy: CuttingProxy, behind: ApiNode) -> None:
    proxy.cut(b'INSERT INTO "jobs_', deliver=True)
    answer = await submit(behind, JobSpec(handler="h"))
    assert (proxy.cuts, answer.created) == (1, True)
    assert await behind.database.run("SELECT id FROM jobs") == [(answer.job.id,)]


async def test_a_submit_without_key_whose_commit_is_not_found_says_that_a_repeat_is_not_safe(
    proxy: CuttingProxy, behind: ApiNode
) -> None:
    proxy.cut(b'INSERT INTO "jobs_', deliver=False)
    async with refused(grpc.StatusCode.UNAVAILABLE) as refusals:
        await submit(behind, JobSpec(handler="h"))
    assert (refusals[0].reason, refusals[0].metadata["repeat_is_safe"]) == ("OUTCOME_UNKNOWN", "false")
    assert refusals[0].retry_after_s == 1.0
    proxy.cut(b"COMMIT", deliver=False)
    batch = pb.BulkSubmitJobsRequest(jobs=[JobSpec(handler="h"), KEY])
    async with refused(grpc.StatusCode.UNAVAILABLE) as refusals:
        await behind.jobs.BulkSubmitJobs(iter([batch]))
    assert refusals[0].metadata == {"repeat_is_safe": "false", "stored_batches": "0"}
    assert await behind.database.run("SELECT count(*) FROM jobs") == [(0,)]


async def test_a_group_that_is_cut_off_gives_each_caller_its_own_answer(proxy: CuttingProxy, behind: ApiNode) -> None:
    proxy.cut(b"COMMIT", deliver=False, times=2)
    specs = [JobSpec(handler="h", dedupe_key=str(number) if number % 2 else "") for number in range(20)]
    answers = await asyncio.gather(*(submit(behind, spec) for spec in specs), return_exceptions=True)
    assert proxy.cuts
    stored = {job_id for (job_id,) in await behind.database.run("SELECT id FROM jobs")}
    for spec, answer in zip(specs, answers, strict=True):
        if isinstance(answer, pb.SubmitJobResponse):
            assert answer.created
            assert answer.job.id in stored
        else:
            assert isinstance(answer, grpc.aio.AioRpcError)
            assert refusal(answer).metadata["repeat_is_safe"] == ("true" if spec.dedupe_key else "false")
    assert len(stored) == sum(isinstance(answer, pb.SubmitJobResponse) for answer in answers)


async def test_keys_of_many_partitions_are_looked_up_each_in_its_own(node: ApiNode) -> None:
    """One statement takes all keys of a group; whether a key's job is live is asked of one partition by its id."""
    handler = await handler_id(node)
    specs = [JobSpec(handler="h", dedupe_key=str(number)) for number in range(32)]
    await node.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=specs))
    await node.database.run("UPDATE dedupe_keys SET expires_at = now()")
    placed = [
        PlacedJob(
            make_id(5 + number, shard_of(SHARDS, "default", str(number))),
            NewJob(
                namespace_id=1,
                handler_id=handler,
                payload=b"",
                dedupe=DedupeKey(key=str(number), ttl=timedelta(0), content_hash=b""),
            ),
        )
        for number in range(32)
    ]
    explain = b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) " + TAKE_KEYS.on_all()
    plan = "\n".join(line for (line,) in await node.database.run(explain, _key_params(placed)))
    assert "Conflicting Tuples: 32" in plan
    assert "hashed" not in plan
    assert "Seq Scan" not in plan
    loops = re.findall(r"Index Only Scan using jobs_\d+_pkey.* loops=(\d+)", plan)
    assert sum(map(int, loops)) == 32


async def _now(node: ApiNode) -> object:
    return (await node.database.run("SELECT now()"))[0][0]


async def _pass_time(node: ApiNode, span: timedelta) -> None:
    await node.database.run(
        "UPDATE dedupe_keys SET expires_at = expires_at - %s, sweep_at = sweep_at - %s", (span, span)
    )


async def _hold_key(dsn: str, handler: int) -> psycopg.AsyncConnection[object]:
    """Take the key in a transaction that stays open."""
    shard = shard_of(SHARDS, "default", KEY.dedupe_key)
    connection = await psycopg.AsyncConnection.connect(dsn)
    await connection.execute("SET idle_in_transaction_session_timeout = 0")
    await connection.execute(
        "INSERT INTO dedupe_keys (shard, namespace_id, handler_id, key, job_id, content_hash, expires_at, sweep_at)"
        " VALUES (%s, 1, %s, %s, %s, '', now() + interval '1 hour', now() + interval '1 hour')",
        (shard, handler, KEY.dedupe_key, make_id(1, shard)),
    )
    return connection


async def _blocked(node: ApiNode) -> bool:
    rows = await node.database.run(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(rows[0][0] > 0)


async def _terminate(node: ApiNode, pid: int) -> None:
    await node.database.run("SELECT pg_terminate_backend(%s)", (pid,))
