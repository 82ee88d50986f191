"""Handlers executed without worker and server: `worker_sdk.testing`, and with it the judgement of outcomes."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from worker_sdk import CancelReason, ConfigurationError, Context, NonRetryable, PayloadError, RetryAfter, Snooze, Worker
from worker_sdk.execution import clean_text, describe_error
from worker_sdk.testing import Outcome, run_handler, run_handler_async

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)
worker = Worker()
events: list[str] = []


@worker.handler("show")
def show(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    assert ctx.deadline is not None
    assert ctx.time_left is not None
    assert not ctx.cancelled.is_set()
    ctx.raise_if_cancelled()
    ctx.progress({"half": True})
    ctx.progress(b"raw")
    return {
        "ids": [ctx.job_id, ctx.attempt, ctx.max_attempts, ctx.claim],
        "names": [ctx.handler, ctx.namespace, ctx.worker, ctx.job_name, ctx.traceparent, ctx.content_type],
        "due": ctx.due_at,
        "scheduled": ctx.scheduled_for,
        "started": ctx.started_at,
        "labels": ctx.labels,
        "key": ctx.idempotency_key,
        "last": ctx.last_progress_json(),
        "left": ctx.time_left < timedelta(seconds=60),
        "payload": payload,
    }


@worker.handler("raise")
async def fail(payload: str) -> None:
    await asyncio.sleep(0)
    match payload:
        case "snooze":
            raise Snooze(timedelta(hours=2))
        case "retry":
            raise RetryAfter(1.5)
        case "never":
            raise NonRetryable("no")
        case "cancelled":
            raise asyncio.CancelledError
        case _:
            raise LookupError(payload)


@worker.handler("wait")
async def wait(payload: object, ctx: Context) -> str:
    await asyncio.sleep(30)
    return "slept"


@worker.handler("swallow")
async def swallow(payload: object) -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        return "swallowed"
    return "slept"


@worker.handler("poll")
def poll(payload: object, ctx: Context) -> None:
    while True:
        ctx.cancelled.wait(0.005)
        ctx.raise_if_cancelled()


def test_a_handler_sees_its_attempt() -> None:
    result = run_handler(
        show, {"a": 1}, attempt=2, max_attempts=5, job_id=77, due_at=NOON, scheduled_for=NOON, labels={"k": "v"},
        last_progress={"row": 3}, time_left=60, name="job", traceparent="00-a", namespace="tenant",
    )  # fmt: skip
    assert result.outcome is Outcome.COMPLETED
    assert result.json() == {
        "ids": [77, 2, 5, 2],
        "names": ["show", "tenant", "test", "job", "00-a", "application/json"],
        "due": NOON.isoformat(),
        "scheduled": NOON.isoformat(),
        "started": None,
        "labels": {"k": "v"},
        "key": "shardwheel/tenant/77",
        "last": {"row": 3},
        "left": True,
        "payload": {"a": 1},
    }
    assert result.progress == (b'{"half":true}', b"raw")
    with pytest.raises(PayloadError):
        result.last_progress_json()


def test_exceptions_become_outcomes() -> None:
    assert run_handler(fail, "snooze").snooze == timedelta(hours=2)
    retry = run_handler(fail, "retry")
    assert (retry.outcome, retry.retry_after) == (Outcome.FAILED, timedelta(seconds=1.5))
    assert run_handler(fail, "never").non_retryable
    other = run_handler(fail, "what")
    assert (other.outcome, other.error_type, other.non_retryable) == (Outcome.FAILED, "LookupError", False)
    assert "in fail" in other.error_message
    assert "execution.py" not in other.error_message
    # Nobody told it to stop, so this is an error like any other.
    assert run_handler(fail, "cancelled").error_type == "CancelledError"


@pytest.mark.parametrize("handler", [wait, swallow, poll])
def test_a_handler_that_is_told_to_stop_has_stopped(handler: Any) -> None:
    result = run_handler(handler, None, cancel_after=0.02, cancel_reason=CancelReason.TIMEOUT)
    assert (result.outcome, result.reason) == (Outcome.STOPPED, CancelReason.TIMEOUT)
    result = run_handler(handler, None, cancel_after=0.02, cancel_reason=CancelReason.SHUTDOWN)
    assert result.outcome is Outcome.INTERRUPTED
    assert run_handler(handler, None, cancel_after=0).outcome is Outcome.STOPPED


async def test_handlers_run_in_a_loop_that_runs_already() -> None:
    assert (await run_handler_async(wait, None, cancel_after=0.01)).outcome is Outcome.STOPPED
    assert (await run_handler_async(show, {}, time_left=5)).outcome is Outcome.COMPLETED
    assert run_handler(fail, "never").outcome is Outcome.FAILED


async def test_the_cancel_signal_can_be_awaited() -> None:
    heard: list[str] = []

    @Worker().handler("h")
    async def handler(payload: object, ctx: Context) -> None:
        try:
            await ctx.cancelled.wait_async()
        finally:
            await ctx.cancelled.wait_async()
            heard.append(str(ctx.cancel_reason and ctx.cancel_reason.name))

    assert (await run_handler_async(handler, None, cancel_after=0.01)).outcome is Outcome.STOPPED
    assert heard == ["REQUESTED"]


def test_complete_in_runs_the_statement_of_each_kind_of_driver() -> None:
    calls: list[tuple[object, ...]] = []

    class Sync:
        def execute(self, query: str, params: object) -> str:
            calls.append((query.split("(")[1], params))
            return "cursor"

    class Numbered:
        async def execute(self, query: str, *args: object) -> str:
            calls.append((query.split("(")[1], args))
            return "SELECT 1"

        async def fetchval(self, query: str, *args: object) -> object:
            raise AssertionError("execute is enough")

    @Worker().handler("sync")
    def sync(payload: object, ctx: Context) -> str:
        assert ctx.complete_in(Sync(), {"x": 1}) == "cursor"
        return "ignored"

    @Worker().handler("async")
    async def asynchronous(payload: object, ctx: Context) -> None:
        assert await ctx.complete_in(Numbered()) == "SELECT 1"

    @Worker().handler("broken")
    def broken(payload: object, ctx: Context) -> None:
        ctx.complete_in(Sync())
        raise RuntimeError("the transaction was rolled back")

    assert run_handler(sync, None, job_id=5, claim=3).outcome is Outcome.COMMITTED
    assert run_handler(asynchronous, None, job_id=6).outcome is Outcome.COMMITTED
    assert run_handler(broken, None).outcome is Outcome.FAILED
    assert calls[0] == ("%s::bigint, %s::bigint, %s::bytea, %s::text)", (5, 3, b'{"x":1}', "application/json"))
    assert calls[1] == ("$1::bigint, $2::bigint, $3::bytea, $4::text)", (6, 1, b"", ""))


def test_results_that_cannot_be_stored_fail_for_good() -> None:
    @Worker().handler("h")
    def handler(payload: int) -> object:
        return [b"x" * 300_000, object(), float("nan")][payload]

    for payload, error in enumerate(["result_too_large", "PayloadError", "PayloadError"]):
        result = run_handler(handler, payload)
        assert (result.error_type, result.non_retryable) == (error, True)


def test_a_sync_handler_that_returns_a_coroutine_is_told_so() -> None:
    async def later() -> None:
        return None

    @Worker().handler("h")
    def handler(payload: object) -> object:
        return later()

    result = run_handler(handler, None)
    assert "declare it with async def" in result.error_message


def test_middleware_runs_around_the_handler() -> None:
    @contextmanager
    def around(ctx: Context) -> Iterator[None]:
        events.append("in")
        yield
        events.append("out")

    run_handler(fail, "never", middleware=[around])
    assert events == ["in"]


def test_progress_has_a_limit() -> None:
    @Worker().handler("h")
    def handler(payload: int, ctx: Context) -> None:
        ctx.progress(b"x" * payload)

    assert run_handler(handler, 16 << 10).outcome is Outcome.COMPLETED
    assert "more than the limit of 16384" in run_handler(handler, (16 << 10) + 1).error_message


def test_the_logger_knows_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @Worker().handler("mail.send")
    def handler(payload: object, ctx: Context) -> None:
        ctx.logger.info("sending to %s", "Ada", extra={"customer": 3})

    run_handler(handler, None, job_id=9, attempt=2)
    (record,) = [record for record in caplog.records if record.name == "worker_sdk.handler.mail.send"]
    assert record.getMessage() == "sending to Ada"
    assert (record.__dict__["job_id"], record.__dict__["attempt"], record.__dict__["customer"]) == (9, 2, 3)


def test_a_context_cannot_be_made_of_naive_instants() -> None:
    with pytest.raises(ConfigurationError, match="no time zone"):
        run_handler(show, {}, due_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the point of the test


def test_error_texts_are_cleaned() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert describe_error(Mute()) == "(Mute has no text: ValueError)"
    assert clean_text("a\x00b\x1b[0m\tc\nd\ud800") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[0m\tc\nd?"
    long = clean_text("début " + "é" * 5_000_000 + " fin")
    assert len(long.encode()) <= 16 << 10
    assert long.startswith("début é")
    assert long.endswith("é fin")
