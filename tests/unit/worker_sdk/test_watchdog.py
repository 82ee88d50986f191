"""When the watchdog process renews a lease, and how it is looked after."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.waiting import wait_until
from worker_sdk._heartbeat import Orders, due, runs
from worker_sdk.connection import Connection
from worker_sdk.lifeline import Lifeline

ORDERS = Orders(interval_s=3.0, limit_s=300.0, request="", addresses=[])


@pytest.mark.parametrize(
    ("silence", "since_renewal", "expected"),
    [
        (0.0, 100.0, False),
        (4.4, 100.0, False),
        (4.5, 100.0, True),
        (20.0, 2.9, False),
        (20.0, 3.0, True),
        (300.0, 3.0, True),
        (300.1, 3.0, False),
    ],
)
def test_a_lease_is_renewed_in_a_silence_that_is_neither_short_nor_endless(
    silence: float, since_renewal: float, expected: bool
) -> None:
    now = 1000.0
    assert due(ORDERS, now=now, heard_at=now - silence, renewed_at=now - since_renewal) is expected


def test_stopped_and_dead_processes_do_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert runs(process.pid)
        assert runs(os.getpid())
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not runs(process.pid), what="the stop")
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: runs(process.pid), what="the continuation")
        process.kill()
        # A zombie first, then nothing at all.
        wait_until(lambda: not runs(process.pid), what="the death")
    finally:
        process.kill()
        process.communicate()
    assert not runs(process.pid)


def test_a_watchdog_that_has_died_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_sdk.lifeline._RESTART_S", 0.0)
    lifeline = Lifeline(Connection(addresses=("127.0.0.1:9",)), worker="w", incarnation=1, limit_s=60)
    assert lifeline.process_id is None
    lifeline.beat()
    lifeline.start()
    lifeline.order(["127.0.0.1:9"], 3.0)
    first = lifeline.process_id
    try:
        assert first is not None
        os.kill(first, signal.SIGKILL)

        def another() -> bool:
            lifeline.beat()
            return lifeline.process_id not in (None, first)

        wait_until(another, what="another process")
    finally:
        lifeline.stop()
    assert lifeline.process_id is None
    lifeline.stop()


def test_a_worker_goes_on_where_no_watchdog_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    lifeline = Lifeline(Connection(addresses=("127.0.0.1:9",)), worker="w", incarnation=1, limit_s=60)
    lifeline.start()
    lifeline.order(["127.0.0.1:9"], 3.0)
    lifeline.beat()
    lifeline.stop()
    assert "going on without it" in caplog.text
