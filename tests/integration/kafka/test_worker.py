"""The SDK's worker takes published jobs, beside those of its sessions."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from server.app import Node
from server.domain.job import Backoff
from tests.integration.kafka.test_publishing import cancel
from tests.support.kafka import GROUP_SETTINGS, KafkaBroker, handler_name, publish
from tests.support.nodes import finished, history, row, submit
from tests.support.waiting import eventually
from worker_sdk import Context, NonRetryable, Worker

AT_ONCE = Backoff(max_attempts=2, initial=timedelta(0), maximum=timedelta(0))
TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
Start = Callable[[Worker], Awaitable[None]]


@pytest.fixture
async def start(node: Node, broker: KafkaBroker) -> AsyncIterator[Start]:
    """Start workers without blocking the event loop in which the node runs; they are stopped in the end."""
    started: list[Worker] = []

    async def begin(worker: Worker) -> None:
        worker.configure(address=node.address, kafka=broker.address, kafka_config=GROUP_SETTINGS)
        started.append(worker)
        await asyncio.to_thread(worker.start)

    yield begin
    for worker in started:
        await asyncio.to_thread(worker.stop, 0.0)


async def test_jobs_of_topics_and_sessions_run_once_each_in_shared_slots(
    node: Node, broker: KafkaBroker, start: Start
) -> None:
    handler, topic = await publish(node)
    other = handler_name("streamed")
    runs: Counter[int] = Counter()
    at_a_time: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def define(name: str) -> Worker:
        worker = Worker(name=name, watchdog=0)

        async def work(payload: bytes, ctx: Context) -> str:
            key = f"{name} {ctx.handler}"
            runs[ctx.job_id] += 1
            at_a_time[key] += 1
            most[key] = max(most[key], at_a_time[key])
            await asyncio.sleep(0.002)
            at_a_time[key] -= 1
            return payload.decode()

        worker.handler(handler, max_concurrency=8)(work)
        worker.handler(other, max_concurrency=8)(work)
        return worker

    for name in ("one", "two"):
        await start(define(name))
    ids = await submit(node, handler, 300) + await submit(node, other, 100)
    await finished(node, ids, timeout=60)
    assert runs == dict.fromkeys(ids, 1)
    assert max(most.values()) <= 8
    assert [one.result for one in await history(node, ids[7])] == [b'"7"']
    await eventually(lambda: asyncio.to_thread(_committed, broker, topic, 300), timeout_s=30, what="commits")


def _committed(broker: KafkaBroker, topic: str, count: int) -> bool:
    return broker.committed(topic) == count


async def test_outcomes_progress_and_cancel_of_published_jobs(node: Node, start: Start) -> None:
    handler, _ = await publish(node)
    worker = Worker(name="w", watchdog=0)
    running = threading.Event()

    @worker.handler(handler, max_concurrency=5)
    def work(payload: bytes, ctx: Context) -> str:
        if payload == b"0":
            raise NonRetryable("no")
        if payload == b"1" and ctx.attempt == 1:
            ctx.progress({"page": 3})
            raise OSError("busy")
        if payload == b"1":
            assert ctx.traceparent == TRACE
            return str(ctx.last_progress_json())
        running.set()
        assert ctx.cancelled.wait(60)
        return "never seen"

    await start(worker)
    refused, retried, cancelled = await submit(node, handler, 3, backoff=AT_ONCE, traceparent=TRACE)
    await eventually(running.is_set, timeout_s=30)
    await cancel(node, cancelled)
    await finished(node, [refused, retried, cancelled], timeout=60)
    [first] = await history(node, refused)
    assert (first.state, first.error_type, first.attempt) == (4, "NonRetryable", 1)
    [second] = await history(node, retried)
    assert (second.state, second.result, second.attempt) == (3, b"\"{'page': 3}\"", 2)
    assert [one.state for one in await history(node, cancelled)] == [5]


async def test_a_worker_that_stops_gives_back_what_it_has_started(node: Node, start: Start) -> None:
    handler, _ = await publish(node)
    worker = Worker(name="w", watchdog=0)
    running = threading.Event()

    @worker.handler(handler, max_concurrency=2)
    async def work(payload: bytes) -> None:
        running.set()
        await asyncio.Event().wait()

    await start(worker)
    [job_id] = await submit(node, handler)
    await eventually(running.is_set, timeout_s=30)
    assert await asyncio.to_thread(worker.stop, 0.1)

    async def published_again() -> bool:
        found = await row(node, job_id)
        return found is not None and (found.claim, found.attempt) == (2, 1)

    await eventually(published_again, what="another publication without a try burned")
