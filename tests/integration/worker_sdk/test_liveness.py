"""Heartbeats go on and other handlers run, whatever a handler does."""

import asyncio
import logging
import os
import signal
import threading
import time

import psutil
import pytest

from tests.integration.worker_sdk.conftest import WorkerProcess, Workers
from tests.support.scripted_server import ScriptedServer, ScriptedSession, assignment
from tests.support.stopping import stop_process
from tests.support.waiting import eventually
from worker_sdk import Worker


def heartbeats(session: ScriptedSession) -> int:
    return len(session.of_kind("heartbeat"))


async def test_a_blocked_event_loop_delays_neither_heartbeats_nor_other_handlers(
    node: ScriptedServer, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(node.address, name="w", blocked_after=0.2, watchdog=0)
    release = threading.Event()

    @worker.handler("block")
    async def block(payload: object) -> str:
        # The test's point: what must not be done in an event loop.
        release.wait(20)
        return "released"

    @worker.handler("other")
    async def other(payload: object) -> None:
        await asyncio.sleep(0)

    @worker.handler("sync")
    def sync(payload: object) -> None:
        return None

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "block"))
    await eventually(lambda: any("event loop blocked" in record.getMessage() for record in caplog.records))
    warning = next(record for record in caplog.records if "event loop blocked" in record.getMessage())
    assert "'block'" in warning.getMessage()
    assert "release.wait(20)" in warning.getMessage()
    before = heartbeats(session)
    await session.send_jobs(assignment(2, "other"), assignment(3, "sync"))
    results = await session.expect_results(2)
    assert {result.attempt.job_id for result in results} == {2, 3}
    # More than a lease of silence, had the loop been the one that beats.
    await eventually(lambda: heartbeats(session) >= before + 6)
    assert len(node.sessions) == 1
    release.set()
    (result,) = await session.expect_results(1)
    assert result.completed.result == b'"released"'
    await eventually(lambda: any("runs again" in record.getMessage() for record in caplog.records))


async def test_blocked_threads_of_one_handler_delay_no_other(node: ScriptedServer, workers: Workers) -> None:
    worker = Worker(node.address, name="w", watchdog=0)
    release = threading.Event()

    @worker.handler("block", max_concurrency=2)
    def block(payload: object) -> None:
        release.wait(20)

    @worker.handler("other")
    def other(payload: object) -> None:
        return None

    session = await workers.connect(worker, node)
    await session.send_jobs(assignment(1, "block"), assignment(2, "block"), assignment(3, "block"))
    await session.send_jobs(assignment(4, "other"))
    (result,) = await session.expect_results(1)
    assert result.attempt.job_id == 4
    release.set()
    await session.expect_results(3)


async def test_the_watchdog_keeps_the_lease_while_native_code_holds_the_interpreter(
    node: ScriptedServer, worker_process: WorkerProcess
) -> None:
    await worker_process.start(node)
    session = await node.next_session()
    assert not node.keep_alives
    await session.send_jobs(assignment(1, "hold.lock", payload=b"2"))
    # Two leases pass without a heartbeat; renewals take their place.
    await eventually(lambda: len(node.keep_alives) >= 3)
    assert all(call.worker == "process" for call in node.keep_alives)
    assert {call.incarnation for call in node.keep_alives} == {session.hello.incarnation}
    (result,) = await session.expect_results(1)
    assert result.completed.result == b'"released"'
    await session.expect("heartbeat")
    renewed = len(node.keep_alives)
    before = heartbeats(session)
    await eventually(lambda: heartbeats(session) >= before + 5)
    # One that was under way when the interpreter came back may still arrive.
    assert len(node.keep_alives) <= renewed + 1
    assert len(node.sessions) == 1


async def test_a_stopped_worker_loses_its_lease(node: ScriptedServer, worker_process: WorkerProcess) -> None:
    process = await worker_process.start(node)
    session = await node.next_session()
    await session.expect("heartbeat")
    stop_process(process.pid)
    stopped_at = time.monotonic()
    before = heartbeats(session)
    # More than a lease: long enough for the watchdog to act if it were going to.
    await eventually(lambda: time.monotonic() - stopped_at > 1.5)
    assert not node.keep_alives
    assert heartbeats(session) <= before + 1
    process.send_signal(signal.SIGCONT)
    await session.expect("heartbeat")


async def test_the_watchdog_dies_with_its_worker(node: ScriptedServer, worker_process: WorkerProcess) -> None:
    process = await worker_process.start(node)
    await node.next_session()
    (watchdog,) = psutil.Process(process.pid).children()
    # A terminal's interrupt reaches the watchdog too, and must not end it.
    os.kill(watchdog.pid, signal.SIGINT)
    os.kill(watchdog.pid, signal.SIGTERM)
    process.kill()
    await eventually(lambda: not watchdog.is_running() or watchdog.status() == psutil.STATUS_ZOMBIE)
    assert not node.keep_alives


async def test_a_dead_watchdog_is_noticed_and_the_worker_goes_on(
    node: ScriptedServer, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(node.address, name="w")

    @worker.handler("a")
    def handler(payload: object) -> None:
        return None

    session = await workers.connect(worker, node)
    watchdog = worker.watchdog_process_id
    assert watchdog is not None
    os.kill(watchdog, signal.SIGKILL)
    before = heartbeats(session)
    await eventually(lambda: heartbeats(session) >= before + 3)
    caplog.set_level(logging.WARNING)
    await session.send_jobs(assignment(1, "a"))
    await session.expect_results(1)
    await asyncio.to_thread(worker.stop)
    assert not psutil.pid_exists(watchdog)
