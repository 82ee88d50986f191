"""Runs handlers in tests of your own, without server and worker; `LocalServer` is a whole server for the others.

::

    result = run_handler(send_email, Email(to="a@example.org"), attempt=2, last_progress={"sent": 3})
    assert result.outcome is Outcome.COMPLETED

The payload is encoded and decoded as it would be on its way to a worker, and the handler's outcome is judged by the
same code that workers use.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypedDict, Unpack, assert_never

from shardwheel.v1.worker_service_pb2 import Assignment
from worker_sdk import outcomes
from worker_sdk.attempt import Attempt
from worker_sdk.codec import JSON_TYPE, encode_value
from worker_sdk.durations import Span, as_seconds, as_timedelta
from worker_sdk.errors import PayloadError
from worker_sdk.execution import execute_async, execute_sync
from worker_sdk.handler import Handler, Payload, Rest, Return
from worker_sdk.job_conversion import instant_to_proto
from worker_sdk.json_text import dump_json, load_json
from worker_sdk.middleware import Middleware
from worker_sdk.outcomes import CancelReason
from worker_sdk.testing_server import LocalServer, ServerNotStarted

__all__ = [
    "AttemptOptions",
    "HandlerResult",
    "LocalServer",
    "Outcome",
    "ServerNotStarted",
    "run_handler",
    "run_handler_async",
]

MAX_RESULT_BYTES = 256 << 10
"""The server's default."""


class Outcome(StrEnum):
    """How the attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    SNOOZED = "snoozed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    COMMITTED = "committed"


class AttemptOptions(TypedDict, total=False):
    """What a handler can be told about the attempt that it executes."""

    attempt: int
    """Which try it is. Default 1."""
    max_attempts: int
    """Default 4."""
    job_id: int
    """Default 1."""
    claim: int
    """Default: the number of the try."""
    name: str
    """Name of the job."""
    namespace: str
    """Default "default"."""
    due_at: datetime
    scheduled_for: datetime
    time_left: Span
    """Time until the deadline that the handler sees. It is not enforced: see cancel_after."""
    labels: Mapping[str, str]
    traceparent: str
    last_progress: object
    """What the attempt before reported: bytes, or anything that JSON can hold."""
    cancel_after: Span
    """The handler is told to stop after this time; 0: it never starts."""
    cancel_reason: CancelReason
    """Default `CancelReason.REQUESTED`."""
    middleware: Sequence[Middleware]
    """Runs around the handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerResult:
    """What a handler did."""

    outcome: Outcome
    result: bytes = b""
    """Of a completed attempt, as it would be stored."""
    content_type: str = ""
    """Media type of the result."""
    error_type: str = ""
    """Class name of the exception that failed the attempt."""
    error_message: str = ""
    """Its text, and where it was raised."""
    non_retryable: bool = False
    """The job must not be tried again."""
    retry_after: timedelta | None = None
    """The next try starts after this time at the earliest."""
    snooze: timedelta | None = None
    """The job is to be run again after this time."""
    reason: CancelReason | None = None
    """Why a stopped attempt was told to stop."""
    progress: Sequence[bytes] = ()
    """Everything that was reported as progress, in order."""

    def json(self) -> object:
        """Return the parsed JSON result; None if the handler returned nothing."""
        if not self.result:
            return None
        if self.content_type != JSON_TYPE:
            raise PayloadError(f"result is {self.content_type or 'of unknown type'}, not {JSON_TYPE}")
        return load_json(self.result)

    def last_progress_json(self) -> object:
        """Return the latest progress, parsed as JSON; None if there was none."""
        return load_json(self.progress[-1]) if self.progress else None


def run_handler(
    handler: Handler[Payload, Rest, Return], payload: Payload, **options: Unpack[AttemptOptions]
) -> HandlerResult:
    """Execute one attempt and return what the handler did. An async handler gets an event loop of its own."""
    if not handler.definition.is_async:
        test = _Test(handler, payload, options)
        with test.cancelling_thread():
            return test.judged(execute_sync(test.attempt, test.middleware))
    # In another thread, for the calling one may run an event loop already.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(run_handler_async(handler, payload, **options))).result()


async def run_handler_async(
    handler: Handler[Payload, Rest, Return], payload: Payload, **options: Unpack[AttemptOptions]
) -> HandlerResult:
    """Execute one attempt in the running event loop and return what the handler did."""
    if not handler.definition.is_async:
        return await asyncio.to_thread(lambda: run_handler(handler, payload, **options))
    test = _Test(handler, payload, options)
    task = asyncio.create_task(execute_async(test.attempt, test.middleware))
    timer = None
    if test.cancel_after_s is not None:
        timer = asyncio.get_running_loop().call_later(test.cancel_after_s, test.cancel, task)
    try:
        return test.judged(await task)
    finally:
        if timer is not None:
            timer.cancel()


class _Test:
    """The attempt of a test, and the worker that it is told to run in."""

    worker = "test"
    max_result_bytes = MAX_RESULT_BYTES

    def __init__(self, handler: Handler[Payload, Rest, Return], payload: Payload, options: AttemptOptions) -> None:
        self.namespace = options.get("namespace", "default")
        self.middleware = tuple(options.get("middleware", ()))
        self._progress: list[bytes] = []
        self._reason = options.get("cancel_reason", CancelReason.REQUESTED)
        after = options.get("cancel_after")
        self.cancel_after_s = None if after is None else as_seconds(after, "cancel_after")
        self.attempt = Attempt(_assignment(handler, payload, options), handler.definition, self)
        if self.cancel_after_s == 0:
            self.cancel()

    def record_progress(self, attempt: Attempt, data: bytes) -> None:
        self._progress.append(data)

    def cancel(self, task: "asyncio.Task[outcomes.Outcome] | None" = None) -> None:
        self.attempt.tell_to_stop(self._reason)
        if task is not None:
            task.cancel()

    def cancelling_thread(self) -> "_Timer":
        return _Timer(self.cancel_after_s, self.cancel)

    def judged(self, outcome: outcomes.Outcome) -> HandlerResult:
        progress = tuple(self._progress)
        match outcome:
            case outcomes.Completed():
                return HandlerResult(
                    outcome=Outcome.COMPLETED, result=outcome.result, content_type=outcome.content_type,
                    progress=progress,
                )  # fmt: skip
            case outcomes.Failed():
                return HandlerResult(
                    outcome=Outcome.FAILED, error_type=outcome.error_type, error_message=outcome.message,
                    non_retryable=outcome.non_retryable, retry_after=outcome.retry_after, progress=progress,
                )  # fmt: skip
            case outcomes.Snoozed():
                return HandlerResult(outcome=Outcome.SNOOZED, snooze=outcome.delay, progress=progress)
            case outcomes.Stopped():
                return HandlerResult(outcome=Outcome.STOPPED, reason=outcome.reason, progress=progress)
            case outcomes.Interrupted():
                return HandlerResult(outcome=Outcome.INTERRUPTED, reason=CancelReason.SHUTDOWN, progress=progress)
            case outcomes.Committed():
                return HandlerResult(outcome=Outcome.COMMITTED, progress=progress)
            case _:
                assert_never(outcome)


class _Timer:
    """Calls a function after a time, unless it is left before."""

    def __init__(self, after_s: float | None, call: Callable[[], None]) -> None:
        self._timer = None if not after_s else threading.Timer(after_s, call)

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.start()

    def __exit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def _assignment(handler: Handler[Payload, Rest, Return], payload: Payload, options: AttemptOptions) -> Assignment:
    data, content_type = encode_value(handler.definition.codec, payload)
    attempt = options.get("attempt", 1)
    message = Assignment(
        job_id=options.get("job_id", 1),
        claim=options.get("claim", attempt),
        attempt=attempt,
        max_attempts=options.get("max_attempts", 4),
        handler=handler.name,
        payload=data,
        content_type=content_type,
        name=options.get("name", ""),
        traceparent=options.get("traceparent", ""),
        labels=options.get("labels", {}),
    )
    if "due_at" in options:
        message.due_at.CopyFrom(instant_to_proto(options["due_at"], "due_at"))
    if "scheduled_for" in options:
        message.scheduled_for.CopyFrom(instant_to_proto(options["scheduled_for"], "scheduled_for"))
    if "time_left" in options:
        message.time_left.FromTimedelta(as_timedelta(options["time_left"], "time_left"))
    last = options.get("last_progress")
    if last is not None:
        message.progress = last if isinstance(last, bytes) else dump_json(last)
    return message
