"""The runners: slots, order, and what attempts must not see of each other."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator

import pytest

from shardwheel.v1.worker_service_pb2 import Assignment
from tests.support.waiting import wait_until
from worker_sdk import CancelReason, Context, Worker
from worker_sdk.async_runner import AsyncRunner
from worker_sdk.attempt import Attempt
from worker_sdk.handler import HandlerDefinition
from worker_sdk.loop_watch import LoopWatch
from worker_sdk.outcomes import Completed, Failed, Outcome, Stopped
from worker_sdk.thread_runner import ThreadRunner

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


class Origin:
    """Where the attempts of these tests come from."""

    namespace = "default"
    worker = "w"
    max_result_bytes = 1000

    def record_progress(self, attempt: Attempt, data: bytes) -> None:
        raise AssertionError("no handler here reports progress")


class Bench:
    """One handler with its runner, and the outcomes so far."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.outcomes: dict[int, Outcome] = {}
        self.runner: AsyncRunner | ThreadRunner | None = None
        self._attempts: dict[int, Attempt] = {}

    def start(self) -> None:
        (definition,) = self.worker.handlers
        kind = AsyncRunner if definition.is_async else ThreadRunner
        self.runner = kind(definition, (), self._report)

    @property
    def definition(self) -> HandlerDefinition:
        return self.worker.handlers[0]

    def submit(self, *job_ids: int) -> None:
        assert self.runner is not None
        attempts = [Attempt(Assignment(job_id=job_id, claim=1), self.definition, Origin()) for job_id in job_ids]
        self._attempts |= {attempt.job_id: attempt for attempt in attempts}
        self.runner.submit(attempts)

    def cancel(self, job_id: int) -> None:
        assert self.runner is not None
        self._attempts[job_id].tell_to_stop(CancelReason.REQUESTED)
        self.runner.cancel(self._attempts[job_id])

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.outcomes) >= count, what=f"{count} outcomes")
        assert len(self.outcomes) == count

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        assert attempt.job_id not in self.outcomes, "an attempt ends once"
        self.outcomes[attempt.job_id] = outcome


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A bench whose runner is stopped at the end."""
    made = Bench()
    yield made
    if made.runner is not None:
        assert made.runner.stop(2.0)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_never_more_than_the_limit_run_at_a_time_and_the_others_follow(bench: Bench, kind: str) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def enter(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)

    if kind == "async":

        @bench.worker.handler("h", max_concurrency=7)
        async def handler_async(payload: object) -> None:
            enter(1)
            await asyncio.sleep(0.001)
            enter(-1)

    else:

        @bench.worker.handler("h", max_concurrency=7)
        def handler_sync(payload: object) -> None:
            enter(1)
            threading.Event().wait(0.001)
            enter(-1)

    bench.start()
    bench.submit(*range(60))
    bench.submit(*range(60, 100))
    bench.wait(100)
    assert all(isinstance(outcome, Completed) for outcome in bench.outcomes.values())
    assert most == 7


def test_attempts_see_nothing_of_each_other(bench: Bench) -> None:
    seen: dict[int, tuple[int, int]] = {}

    @bench.worker.handler("h", max_concurrency=1)
    async def handler(payload: object, ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen[ctx.job_id] = (variable.get(), task.cancelling())
        if ctx.job_id % 3 == 0:
            variable.set(ctx.job_id)
        if ctx.job_id % 5 == 0:
            # Cancels itself, which leaves a trace on its task.
            task.cancel()
            await asyncio.sleep(0)

    bench.start()
    bench.submit(*range(1, 200))
    bench.wait(199)
    assert set(seen.values()) == {(0, 0)}
    assert isinstance(bench.outcomes[5], Failed)


def test_a_waiting_attempt_does_not_hold_up_the_line(bench: Bench) -> None:
    release = threading.Event()

    @bench.worker.handler("h", max_concurrency=3)
    async def handler(payload: object, ctx: Context) -> None:
        if ctx.job_id < 2:
            await asyncio.to_thread(release.wait, 10)

    bench.start()
    bench.submit(*range(100))
    bench.wait(98)
    release.set()
    bench.wait(100)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_cancel_ends_what_waits_in_line_at_once(bench: Bench, kind: str) -> None:
    release = threading.Event()
    started: list[int] = []

    if kind == "async":

        @bench.worker.handler("h", max_concurrency=1)
        async def handler_async(payload: object, ctx: Context) -> None:
            started.append(ctx.job_id)
            await asyncio.to_thread(release.wait, 10)

    else:

        @bench.worker.handler("h", max_concurrency=1)
        def handler_sync(payload: object, ctx: Context) -> None:
            started.append(ctx.job_id)
            release.wait(10)

    bench.start()
    bench.submit(1, 2, 3)
    wait_until(lambda: started == [1])
    bench.cancel(2)
    bench.wait(1)
    assert bench.outcomes[2] == Stopped(reason=CancelReason.REQUESTED)
    release.set()
    bench.wait(3)
    # A cancel that comes too late does nothing.
    bench.cancel(2)
    bench.cancel(3)
    bench.submit(4)
    bench.wait(4)
    assert started == [1, 3, 4]


def test_a_cancelled_attempt_does_not_disturb_the_next_one_of_its_lane(bench: Bench) -> None:
    @bench.worker.handler("h", max_concurrency=1)
    async def handler(payload: object, ctx: Context) -> None:
        if ctx.job_id == 1:
            await asyncio.sleep(10)
        async with asyncio.timeout(5):
            await asyncio.sleep(0.001)

    bench.start()
    bench.submit(1, 2, 3)
    wait_until(lambda: bench._attempts[1].task is not None)
    bench.cancel(1)
    bench.wait(3)
    assert isinstance(bench.outcomes[1], Stopped)
    assert isinstance(bench.outcomes[2], Completed)
    assert isinstance(bench.outcomes[3], Completed)


def test_a_blocked_loop_is_warned_about_once_with_the_place(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    started = threading.Event()

    @bench.worker.handler("h")
    async def handler(payload: object) -> None:
        started.set()
        release.wait(10)

    bench.start()
    assert isinstance(bench.runner, AsyncRunner)
    now = 100.0
    watch = LoopWatch(bench.runner, patience_s=2.0, clock=lambda: now)
    answered = threading.Event()
    # An idle loop is left alone.
    watch.look()
    bench.runner.probe(answered.set)
    assert answered.wait(5)
    bench.submit(1)
    assert started.wait(5)
    for _ in range(4):
        now += 1.0
        watch.look()
        watch.look()
    warnings = messages(caplog)
    assert len(warnings) == 1
    place = warnings[0].splitlines()[1:]
    assert "in handler" in place[0]
    assert "release.wait(10)" in place[1]
    release.set()
    bench.wait(1)
    wait_until(lambda: len(messages(caplog)) == 2)
    assert "runs again" in messages(caplog)[1]


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
