"""What a handler knows about the attempt it executes."""

import logging
import time
from collections.abc import Awaitable, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar, cast

from worker_sdk.attempt import Attempt
from worker_sdk.cancel_signal import CancelSignal
from worker_sdk.codec import checked_size, encode_value
from worker_sdk.completion import Executor, start_completion
from worker_sdk.json_text import dump_json, load_json
from worker_sdk.outcomes import Cancelled, CancelReason

Answer = TypeVar("Answer")

MAX_PROGRESS_BYTES = 16 << 10


class Context:
    """One execution of a job, as its handler sees it. Safe to use from any thread."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        """Describe an attempt. Workers and `worker_sdk.testing` make contexts; handlers get them."""
        self._attempt = attempt

    @property
    def job_id(self) -> int:
        """Identity of the job, stable over attempts."""
        return self._attempt.job_id

    @property
    def job_name(self) -> str:
        """Name of the job for people; often empty."""
        return self._attempt.assignment.name

    @property
    def handler(self) -> str:
        """Name of the handler."""
        return self._attempt.definition.name

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return self._attempt.origin.namespace

    @property
    def worker(self) -> str:
        """Name of the worker."""
        return self._attempt.origin.worker

    @property
    def attempt(self) -> int:
        """Which try this is, from 1."""
        return self._attempt.assignment.attempt

    @property
    def max_attempts(self) -> int:
        """Number of tries in all, the first one included."""
        return self._attempt.assignment.max_attempts

    @property
    def claim(self) -> int:
        """Number of this execution: grows with each one of the job, and never repeats. A fencing token."""
        return self._attempt.claim

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of the job, different for all jobs: give it to services that deduplicate."""
        return f"shardwheel/{self.namespace}/{self.job_id}"

    @property
    def due_at(self) -> datetime | None:
        """When the job was due, in UTC."""
        assignment = self._attempt.assignment
        return assignment.due_at.ToDatetime(tzinfo=UTC) if assignment.HasField("due_at") else None

    @property
    def scheduled_for(self) -> datetime | None:
        """Nominal time, in UTC, of the schedule's firing; None if no schedule made the job."""
        assignment = self._attempt.assignment
        return assignment.scheduled_for.ToDatetime(tzinfo=UTC) if assignment.HasField("scheduled_for") else None

    @property
    def started_at(self) -> datetime | None:
        """When the attempt started, in UTC, by the database's clock."""
        assignment = self._attempt.assignment
        return assignment.started_at.ToDatetime(tzinfo=UTC) if assignment.HasField("started_at") else None

    @property
    def deadline(self) -> datetime | None:
        """When the attempt is over its time, in UTC, by this machine's clock; None without limit."""
        left = self.time_left
        return None if left is None else datetime.now(UTC) + left

    @property
    def time_left(self) -> timedelta | None:
        """Time until the deadline, never negative; None without limit."""
        deadline = self._attempt.deadline
        return None if deadline is None else timedelta(seconds=max(0.0, deadline - time.monotonic()))

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the job."""
        return dict(self._attempt.assignment.labels)

    @property
    def content_type(self) -> str:
        """Media type of the payload."""
        return self._attempt.assignment.content_type

    @property
    def traceparent(self) -> str:
        """W3C trace context of the submitter; empty if there was none."""
        return self._attempt.assignment.traceparent

    @property
    def cancelled(self) -> CancelSignal:
        """Set when the attempt has to stop.

        An async handler also gets `asyncio.CancelledError` where it awaits. A thread cannot be stopped from outside: a
        sync handler has to look at this, sleep with `cancelled.wait(seconds)`, or call `raise_if_cancelled`. A handler
        that has seen the signal and then returns has stopped, not completed.
        """
        return self._attempt.signal()

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the attempt has to stop; None while it need not."""
        return self._attempt.cancel_reason

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the attempt has to stop."""
        signal = self._attempt.signal()
        if signal.is_set() and signal.reason is not None:
            raise Cancelled(signal.reason)

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger `worker_sdk.handler.<name>` whose records carry job_id, attempt and claim."""
        return _AttemptLogger(
            logging.getLogger(f"worker_sdk.handler.{self.handler}"),
            {"job_id": self.job_id, "attempt": self.attempt, "claim": self.claim},
        )

    def progress(self, data: object) -> None:
        """Report progress: bytes, or anything that JSON can hold; at most 16 KiB. Does not block.

        The latest value is sent with the next heartbeat (3 s by default) and with the end of the attempt, is shown on
        the job, and is handed to the next attempt as `last_progress`. What was reported since the last heartbeat is
        lost if the process is killed. Raises `PayloadError` if the data is too large or has no JSON form.
        """
        raw = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else dump_json(data)
        self._attempt.origin.record_progress(self._attempt, checked_size(raw, MAX_PROGRESS_BYTES, "progress"))

    @property
    def last_progress(self) -> bytes | None:
        """What the attempt before reported last, as bytes; None if there is nothing."""
        return self._attempt.assignment.progress or None

    def last_progress_json(self) -> object:
        """Return what the attempt before reported last, parsed as JSON; None if there is nothing."""
        data = self.last_progress
        return None if data is None else load_json(data)

    def complete_in(self, connection: Executor[Answer], result: object = None) -> Answer:
        """Complete the job inside the transaction that is open on your own connection to Shardwheel's database.

        Your effect and the completion are then committed together, or not at all; `result` is stored with the job. If
        the attempt is no longer open (it was given to another worker), the statement raises and the transaction fails.
        After this the handler should do nothing but commit and return: what it returns is ignored, and the node checks
        that the job is completed.

        `connection` is a connection or cursor of psycopg, sync or asyncio, or a connection of asyncpg; with asyncio the
        call has to be awaited. Its role needs USAGE on the schema `shardwheel`, and EXECUTE on its `complete_attempt`.
        Returns the driver's answer.
        """
        data, content_type = encode_value(self._attempt.definition.codec, result)
        checked_size(data, self._attempt.origin.max_result_bytes, "result")
        answer = start_completion(connection, self.job_id, self.claim, data, content_type)
        if isinstance(answer, Awaitable):
            return cast("Answer", self._finish_completion(answer))
        self._attempt.committed = True
        return cast("Answer", answer)

    async def _finish_completion(self, answer: Awaitable[object]) -> object:
        finished = await answer
        self._attempt.committed = True
        return finished


class _AttemptLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the attempt to each record, beside what the caller adds."""

    def process(self, msg: object, kwargs: MutableMapping[str, object]) -> tuple[object, MutableMapping[str, object]]:
        extra = kwargs.get("extra")
        kwargs["extra"] = {**(self.extra or {}), **(extra if isinstance(extra, dict) else {})}
        return msg, kwargs
