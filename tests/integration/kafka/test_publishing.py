"""Published jobs from claim to end, on a real node, database and broker."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import grpc

from server.app import Node
from server.domain.dispatch import DispatchMode
from server.domain.job import Backoff, TimeLimits
from shardwheel.v1 import job_service_pb2 as jobs
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.job_service_pb2_grpc import JobServiceStub
from tests.integration.kafka.consumer import Caller
from tests.support.kafka import KafkaBroker, Published, publish
from tests.support.nodes import finished, history, row, running_node, running_nodes, submit
from tests.support.raw_worker import raw_worker
from tests.support.waiting import eventually

AT_ONCE = Backoff(max_attempts=4, initial=timedelta(0), maximum=timedelta(0))
ACCEPTED, DUPLICATE, STALE = pb.ResultAck.ACCEPTED, pb.ResultAck.DUPLICATE, pb.ResultAck.STALE


async def published(broker: KafkaBroker, topic: str, count: int, timeout_s: float = 30) -> list[Published]:
    """Wait for so many messages in a topic, and return all."""
    found: list[Published] = []

    async def there() -> bool:
        found[:] = await asyncio.to_thread(broker.messages, topic)
        return len(found) >= count

    await eventually(there, timeout_s=timeout_s, what=f"{count} messages in {topic}")
    return found


async def test_a_published_job_is_started_once_and_finished(node: Node, broker: KafkaBroker) -> None:
    handler, topic = await publish(node)
    async with raw_worker(node.address, {handler: 5}, "a") as a, raw_worker(node.address, {handler: 5}, "b") as b:
        [job_id] = await submit(node, handler, traceparent="00-aa-bb-01", content_type="text/plain", name="hello")
        [message] = await published(broker, topic, 1)
        assert (message.key, message.value) == (b"%d" % job_id, b"0")
        deadline = datetime.fromisoformat(message.headers.pop("deadline").decode())
        assert timedelta(minutes=4) < deadline - datetime.now(UTC) < timedelta(minutes=6)
        assert message.headers == {"attempt": b"1", "claim": b"1", "traceparent": b"00-aa-bb-01"}
        assert a.jobs == b.jobs == []
        [job] = await Caller(a).start([message])
        assert (job.job_id, job.claim, job.attempt, job.handler, job.name) == (job_id, 1, 1, handler, "hello")
        assert (job.payload, job.content_type) == (b"", "text/plain")
        # The broker may deliver it again, to the same consumer or another one; answers may be lost.
        assert [one.job_id for one in await Caller(a).start([message, message])] == [job_id]
        assert await Caller(b).start([message]) == []
        assert await Caller(a).finish([job]) == [ACCEPTED]
        assert await Caller(a).finish([job]) == [DUPLICATE]
        assert await Caller(a).start([message]) == []
    [kept] = await history(node, job_id)
    assert (kept.state, kept.result, kept.attempt) == (3, b"done", 1)
    assert await row(node, job_id) is None


async def test_a_job_that_nobody_starts_is_published_again_without_a_try(node: Node, broker: KafkaBroker) -> None:
    """So a message that the broker lost still runs."""
    handler, topic = await publish(node, queue_timeout=timedelta(seconds=1))
    async with raw_worker(node.address, {handler: 1}) as worker:
        [job_id] = await submit(node, handler)
        first, second, *_ = sorted(await published(broker, topic, 2), key=lambda one: one.claim)
        assert (second.job_id, second.headers["attempt"]) == (job_id, b"1")
        await change_dispatch(node, handler, DispatchMode.KAFKA, timedelta(hours=1))
        await eventually(partial(_published_for_long, node, job_id))
        live = await row(node, job_id)
        assert live is not None
        messages = {one.claim: one for one in await published(broker, topic, live.claim)}
        assert await Caller(worker).start([first, second]) == []
        started = await Caller(worker).start([messages[live.claim]])
        # From now on the worker's lease counts, not the queue's time.
        live = await row(node, job_id)
        assert live is not None
        assert (live.timeout_at, live.attempt) == (None, 1)
        assert await Caller(worker).finish(started) == [ACCEPTED]
    assert [one.attempt for one in await history(node, job_id)] == [1]


async def _published_for_long(node: Node, job_id: int) -> bool:
    live = await row(node, job_id)
    return live is not None and live.state == 1 and live.timeout_at - datetime.now(UTC) > timedelta(minutes=1)


async def test_a_crash_between_claim_and_publication_burns_no_try(node: Node, broker: KafkaBroker) -> None:
    handler, topic = await publish(node, queue_timeout=timedelta(seconds=2))

    class Crash(Exception):
        pass

    async def crash() -> None:
        node.engine.failpoints.set("claim.committed", None)
        raise Crash

    await published(broker, topic, 0)
    node.engine.failpoints.set("claim.committed", crash)
    [job_id] = await submit(node, handler)
    [message] = await published(broker, topic, 1)
    assert (message.job_id, message.claim, message.headers["attempt"]) == (job_id, 2, b"1")


async def test_unfinished_jobs_are_capped(node: Node, broker: KafkaBroker) -> None:
    handler, topic = await publish(node, max_unfinished=3)
    ids = await submit(node, handler, 10)
    async with raw_worker(node.address, {handler: 10}) as worker:
        caller, done = Caller(worker), 0
        while done < 10:
            messages = await published(broker, topic, min(done + 3, 10))
            assert len(messages) <= done + 3
            started = await caller.start(messages)
            assert 0 < len(started) <= 3
            done += (await caller.finish(started)).count(ACCEPTED)
    await finished(node, ids)


async def test_a_worker_that_dies_loses_what_it_has_started(node: Node, broker: KafkaBroker) -> None:
    handler, topic = await publish(node)
    async with raw_worker(node.address, {handler: 1}, "one") as one:
        [job_id] = await submit(node, handler, backoff=AT_ONCE)
        [first] = await Caller(one).start(await published(broker, topic, 1))
    async with raw_worker(node.address, {handler: 1}, "other") as other:
        second = next(one for one in await published(broker, topic, 2) if one.claim == 2)
        assert second.headers["attempt"] == b"2"
        [job] = await Caller(other).start([second])
        assert await Caller(one).finish([first]) == [STALE]
        assert await Caller(other).finish([job]) == [ACCEPTED]
    assert [one.attempt for one in await history(node, job_id)] == [2]


async def test_a_published_job_is_cancelled_at_once_and_a_started_one_through_its_worker(
    node: Node, broker: KafkaBroker
) -> None:
    handler, topic = await publish(node)
    async with raw_worker(node.address, {handler: 2}) as worker:
        waiting, running = await submit(node, handler, 2)
        messages = {one.job_id: one for one in await published(broker, topic, 2)}
        [job] = await Caller(worker).start([messages[running]])
        await cancel(node, waiting)
        [kept] = await history(node, waiting)
        assert (kept.state, kept.worker_id, kept.started_at) == (5, None, None)
        assert await Caller(worker).start([messages[waiting]]) == []
        assert node.engine.registry.of_handler(await number_of(node, handler)) == 1
        await cancel(node, running)
        await eventually(lambda: [one.attempt.job_id for one in worker.cancels] == [running])
        stopped = pb.Stopped(reason=pb.CANCEL_REQUESTED)
        assert await Caller(worker).finish([job], stopped=stopped) == [ACCEPTED]
    assert [one.state for one in await history(node, running)] == [5]


async def test_time_limits_of_a_published_job(node: Node, broker: KafkaBroker) -> None:
    """It fails when no consumer has started it within its start timeout; a started one is told at its attempt's end."""
    handler, topic = await publish(node)
    once = Backoff(max_attempts=1)
    async with raw_worker(node.address, {handler: 2}) as worker:
        [slow] = await submit(node, handler, limits=TimeLimits(attempt=timedelta(seconds=1)), backoff=once)
        [late] = await submit(node, handler, limits=TimeLimits(start=timedelta(seconds=1)), backoff=once)
        messages = {one.job_id: one for one in await published(broker, topic, 2)}
        [job] = await Caller(worker).start([messages[slow]])
        assert 0 < job.time_left.ToTimedelta().total_seconds() <= 1
        await eventually(lambda: [one.reason for one in worker.cancels] == [pb.CANCEL_TIMEOUT])
        await finished(node, [late])
        assert [(one.state, one.error_type, one.attempt) for one in await history(node, late)] == [
            (4, "start_timeout", 0)
        ]
        assert await Caller(worker).finish([job], stopped=pb.Stopped(reason=pb.CANCEL_TIMEOUT)) == [ACCEPTED]
    assert [one.error_type for one in await history(node, slow)] == ["timeout"]


async def test_a_large_payload_stays_in_the_database_until_the_start(node: Node, broker: KafkaBroker) -> None:
    handler, topic = await publish(node)
    async with raw_worker(node.address, {handler: 1}) as worker:
        payload = b"x" * (600 << 10)
        await submit(node, handler, payload=payload)
        [message] = await published(broker, topic, 1)
        assert (message.value, message.headers["payload"]) == (b"", b"left-out")
        [job] = await Caller(worker).start([message], with_payload=True)
        assert job.payload == payload
        assert await Caller(worker).finish([job]) == [ACCEPTED]


async def test_the_broker_is_away_and_only_its_jobs_wait(database: str, tmp_path: Path) -> None:
    with KafkaBroker() as broker:
        async with running_node(database, tmp_path, kafka=broker.address) as node:
            handler, topic = await publish(node)
            await submit(node, handler)
            await published(broker, topic, 1)
            broker.kill()
            ids = await submit(node, handler, 50)
            async with raw_worker(node.address, {"other": 50}) as worker:
                others = await submit(node, "other", 50)
                worker.complete(await worker.next_jobs(50))
                await finished(node, others)

            async def all_pending() -> bool:
                rows = await node.database.fetch("SELECT state, attempt FROM jobs WHERE id = ANY(%s)", (ids,))
                return {(one.state, one.attempt) for one in rows} == {(0, 0)} and len(rows) == 50

            await eventually(all_pending, timeout_s=30, what="jobs that are pending and untried")
            await asyncio.to_thread(broker.start)
            async with raw_worker(node.address, {handler: 50}) as worker:
                done = 0
                while done < 50:
                    started = await Caller(worker).start(await published(broker, topic, 50))
                    done += (await Caller(worker).finish(started)).count(ACCEPTED) if started else 0
            assert {one.attempt for job_id in ids for one in await history(node, job_id)} == {1}


async def test_any_node_starts_and_finishes_and_the_owner_hears_of_it(
    broker: KafkaBroker, database: str, tmp_path: Path
) -> None:
    async with running_nodes(database, tmp_path, 2, kafka=broker.address) as nodes:
        first, second = nodes
        handler, topic = await publish(first, max_unfinished=20)
        number = await number_of(first, handler)
        await eventually(lambda: second.engine.queues.is_open(number))
        # As many in each shard, so each node has enough for its half of the cap.
        ids = await submit(first, handler, 64)
        async with raw_worker(first.address, {handler: 64}) as worker, worker.beside(second.address):
            callers = Caller(worker, first.address), Caller(worker, second.address)
            started = await callers[1].start(await published(broker, topic, 20))
            assert len(started) == 20
            await eventually(partial(_nobody, nodes, -number), what="the owners' knowledge of the start")
            assert set(await callers[0].finish(started)) == {ACCEPTED}
            done = 20
            while done < 64:
                started = await callers[0].start(await published(broker, topic, min(done + 20, 64)))
                done += (await callers[1].finish(started)).count(ACCEPTED)
        await finished(first, ids)


def _nobody(nodes: list[Node], worker_id: int) -> bool:
    return not any(node.engine.registry.of_worker(worker_id) for node in nodes)


async def test_a_handler_goes_back_to_streams(node: Node, broker: KafkaBroker) -> None:
    handler, topic = await publish(node)
    await submit(node, handler)
    await published(broker, topic, 1)
    await change_dispatch(node, handler, DispatchMode.STREAM, timedelta(minutes=5))
    async with raw_worker(node.address, {handler: 2}) as worker:
        [later] = await submit(node, handler)
        [job] = await worker.next_jobs(1)
        assert job.job_id == later


async def change_dispatch(node: Node, handler: str, mode: DispatchMode, queue_timeout: timedelta) -> None:
    """Say how a handler's jobs are handed out from now on."""
    namespace = await node.catalog.namespace("default")
    changed = await node.catalog.set_dispatch(
        namespace, handler, mode, queue_timeout=queue_timeout, max_unfinished=None
    )
    await node.publishing.changed(changed)


async def cancel(node: Node, job_id: int) -> None:
    """Cancel a job through the API."""
    async with grpc.aio.insecure_channel(node.address) as channel:
        await JobServiceStub(channel).CancelJob(jobs.CancelJobRequest(id=job_id), timeout=10)


async def number_of(node: Node, handler: str) -> int:
    """Return the number of a handler."""
    return (await node.catalog.handler(1, handler)).handler_id
