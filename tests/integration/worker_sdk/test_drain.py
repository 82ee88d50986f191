"""A worker that is told to stop finishes what it can, and gives back the rest."""

import asyncio
import logging
import signal
import threading
import time

import grpc
import pytest

from tests.integration.worker_sdk.conftest import WorkerProcess, Workers
from tests.support.scripted_server import ScriptedServer, assignment
from tests.support.waiting import eventually
from worker_sdk import Context, Worker


async def test_sigterm_drains_a_worker_process(node: ScriptedServer, worker_process: WorkerProcess) -> None:
    process = await worker_process.start(node, "--grace", "0.6")
    session = await node.next_session()
    await session.expect_credit("sleep", 20)
    short = [assignment(i, "sleep", payload=b"0.3") for i in range(1, 6)]
    await session.send_jobs(*short, assignment(6, "endless"), assignment(7, "endless.async"))
    await session.expect("heartbeat", lambda request: len(request.heartbeat.progress) == 1)
    process.send_signal(signal.SIGTERM)
    await session.expect_credit("sleep", 0)
    # What was under way when the credit was taken back is given back unstarted.
    await session.send_jobs(assignment(8, "quick"))
    results = {item.attempt.job_id: item.WhichOneof("outcome") for item in await session.expect_results(8)}
    assert results == {**dict.fromkeys(range(1, 6), "completed"), 6: "interrupted", 7: "interrupted", 8: "interrupted"}
    await session.expect("goodbye")
    assert await worker_process.wait() == 0
    kinds = [request.WhichOneof("message") for request in session.received]
    assert kinds[-1] == "goodbye"
    first_result, last_result = kinds.index("results"), len(kinds) - kinds[::-1].index("results")
    assert "heartbeat" in kinds[first_result:last_result]
    assert not node.keep_alives
    assert "worker process runs quick x10" in worker_process.lines[0]
    assert any("SIGTERM" in line for line in worker_process.lines)


async def test_a_second_signal_exits_at_once(node: ScriptedServer, worker_process: WorkerProcess) -> None:
    process = await worker_process.start(node, "--grace", "60")
    session = await node.next_session()
    await session.send_jobs(assignment(1, "endless"))
    await session.expect("heartbeat", lambda request: len(request.heartbeat.progress) == 1)
    process.send_signal(signal.SIGINT)
    await session.expect_credit("endless", 0)
    process.send_signal(signal.SIGTERM)
    assert await worker_process.wait(2.0) == 128 + signal.SIGTERM
    assert not session.of_kind("results")


async def test_a_handler_that_never_stops_is_given_back_with_the_goodbye(
    node: ScriptedServer, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_sdk.core._STOP_S", 0.3)
    monkeypatch.setattr("worker_sdk.worker._STOP_RUNNERS_S", 0.2)
    worker = Worker(node.address, name="w", watchdog=0)
    release = threading.Event()

    @worker.handler("deaf")
    def deaf(payload: object) -> None:
        release.wait(20)

    @worker.handler("deaf.async")
    async def deaf_async(payload: object) -> None:
        release.wait(20)

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "deaf"), assignment(2, "deaf.async"))
    await session.send_audit(1)
    await session.expect_report(1)
    assert not await asyncio.to_thread(worker.stop, 0.0)
    results = {item.attempt.job_id: item.WhichOneof("outcome") for item in await session.expect_results(2)}
    assert results == {1: "interrupted", 2: "interrupted"}
    assert session.received[-1].WhichOneof("message") == "goodbye"
    release.set()


async def test_attempts_that_wait_for_a_slot_are_given_back_at_once(node: ScriptedServer, workers: Workers) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    release = threading.Event()
    started: list[int] = []

    @worker.handler("sync", max_concurrency=1)
    def sync(payload: object, ctx: Context) -> None:
        started.append(ctx.job_id)
        release.wait(20)

    @worker.handler("async", max_concurrency=1)
    async def asynchronous(payload: object, ctx: Context) -> None:
        started.append(ctx.job_id)
        await asyncio.to_thread(release.wait, 20)

    session = await workers.connect(worker, node)
    await session.send_jobs(*(assignment(i, "sync") for i in (1, 2)), *(assignment(i, "async") for i in (3, 4)))
    await eventually(lambda: sorted(started) == [1, 3])
    stopping = asyncio.create_task(asyncio.to_thread(worker.stop, 20))
    results = {item.attempt.job_id: item.WhichOneof("outcome") for item in await session.expect_results(2)}
    assert results == {2: "interrupted", 4: "interrupted"}
    release.set()
    results = {item.attempt.job_id: item.WhichOneof("outcome") for item in await session.expect_results(2)}
    assert results == {1: "completed", 3: "completed"}
    assert await stopping


async def test_a_worker_reconnects_while_it_drains(node: ScriptedServer, workers: Workers) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    release = threading.Event()

    @worker.handler("hold")
    def hold(payload: object) -> None:
        release.wait(20)

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "hold"))
    await session.send_audit(1)
    await session.expect_report(1)
    stopping = asyncio.create_task(asyncio.to_thread(worker.stop, 20))
    await session.expect_credit("hold", 0)
    await session.reset(grpc.StatusCode.UNAVAILABLE)
    again = await node.next_session()
    await again.expect_credit("hold", 0)
    assert [ref.job_id for ref in again.hello.report.running] == [1]
    release.set()
    (result,) = await again.expect_results(1)
    assert result.HasField("completed")
    assert await stopping
    assert again.received[-1].WhichOneof("message") == "goodbye"


async def test_a_worker_that_cannot_connect_gives_a_hint_and_stops_when_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    # Port 9 is the discard service: nobody listens there.
    worker = Worker("127.0.0.1:9", name="w", watchdog=0)

    @worker.handler("a")
    def handler(payload: object) -> None:
        return None

    running = asyncio.create_task(asyncio.to_thread(worker.run))
    await eventually(lambda: any("shardwheel dev" in record.getMessage() for record in caplog.records))
    started = time.monotonic()
    worker.request_stop()
    assert await running
    assert time.monotonic() - started < 2
