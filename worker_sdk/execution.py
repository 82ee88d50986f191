"""Executes one attempt: decode, call, and turn whatever happens into an outcome. Never raises."""

import asyncio
import inspect
import logging
import os
import re
import traceback
from contextlib import AsyncExitStack, ExitStack

from worker_sdk.attempt import Attempt
from worker_sdk.codec import encode_value
from worker_sdk.context import Context
from worker_sdk.errors import PayloadError
from worker_sdk.middleware import Middleware, enter_all, enter_all_async
from worker_sdk.outcomes import (
    Cancelled,
    CancelReason,
    Committed,
    Completed,
    Failed,
    Interrupted,
    NonRetryable,
    Outcome,
    RetryAfter,
    Snooze,
    Snoozed,
    Stopped,
)

MAX_ERROR_BYTES = 16 << 10
_OWN = os.path.dirname(__file__) + os.sep
# Control characters other than tab and line feed; they have no place in a text for people.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_log = logging.getLogger("worker_sdk")


async def execute_async(attempt: Attempt, middleware: tuple[Middleware, ...]) -> Outcome:
    """Call an async handler in the running event loop."""
    if attempt.cancel_reason is not None:
        return stopped(attempt.cancel_reason)
    definition, assignment = attempt.definition, attempt.assignment
    try:
        payload = definition.decode(assignment.payload, assignment.content_type)
        if not middleware and not definition.takes_context:
            value = await _awaited(definition.function(payload))
        else:
            context = Context(attempt)
            async with AsyncExitStack() as stack:
                await enter_all_async(middleware, context, stack)
                arguments = (payload, context) if definition.takes_context else (payload,)
                value = await _awaited(definition.function(*arguments))
        # A handler that swallowed the cancellation and returned has stopped early all the same.
        return _outcome_of_value(attempt, value, told=attempt.cancel_reason is not None)
    except BaseException as error:  # an attempt must end with an outcome whatever its handler raises
        return _outcome_of_error(attempt, error)


def execute_sync(attempt: Attempt, middleware: tuple[Middleware, ...]) -> Outcome:
    """Call a sync handler in the running thread."""
    if attempt.cancel_reason is not None:
        return stopped(attempt.cancel_reason)
    definition, assignment = attempt.definition, attempt.assignment
    try:
        payload = definition.decode(assignment.payload, assignment.content_type)
        if not middleware and not definition.takes_context:
            value = definition.function(payload)
        else:
            context = Context(attempt)
            with ExitStack() as stack:
                enter_all(middleware, context, stack)
                value = (
                    definition.function(payload, context) if definition.takes_context else definition.function(payload)
                )
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"handler {definition.name!r} returned an awaitable; declare it with async def")
        return _outcome_of_value(attempt, value, told=attempt.saw_cancel)
    except BaseException as error:  # an attempt must end with an outcome whatever its handler raises
        return _outcome_of_error(attempt, error)


def stopped(reason: CancelReason) -> Outcome:
    """Return the outcome of an attempt that ended because it was told to."""
    return Interrupted() if reason is CancelReason.SHUTDOWN else Stopped(reason=reason)


async def _awaited(result: object) -> object:
    if not inspect.isawaitable(result):
        raise TypeError(f"an async handler returned {type(result).__name__}, which cannot be awaited")
    return await result


def _outcome_of_value(attempt: Attempt, value: object, *, told: bool) -> Outcome:
    if attempt.committed:
        return Committed()
    if told and attempt.cancel_reason is not None:
        return stopped(attempt.cancel_reason)
    if value is None:
        return Completed()
    try:
        result, content_type = encode_value(attempt.definition.codec, value)
    except PayloadError as error:
        # The effects have happened, and the next try would return the same kind of value.
        return Failed(error_type="PayloadError", message=clean_text(f"result: {error}"), non_retryable=True)
    limit = attempt.origin.max_result_bytes
    if len(result) > limit:
        return Failed(
            error_type="result_too_large",
            message=f"the result has {len(result)} bytes, more than the limit of {limit}; return a reference instead",
            non_retryable=True,
        )
    return Completed(result=result, content_type=content_type)


def _outcome_of_error(attempt: Attempt, error: BaseException) -> Outcome:
    match error:
        case Snooze():
            return Snoozed(delay=error.delay)
        case Cancelled():
            return stopped(error.reason)
        case asyncio.CancelledError() if attempt.cancel_reason is not None:
            return stopped(attempt.cancel_reason)
        case RetryAfter():
            return _failed(attempt, error, retry_after=error)
        case NonRetryable():
            return _failed(attempt, error, non_retryable=True)
        case _:
            return _failed(attempt, error)


def _failed(
    attempt: Attempt, error: BaseException, *, non_retryable: bool = False, retry_after: RetryAfter | None = None
) -> Failed:
    _log.warning(
        "attempt %s of job %s (%s) failed",
        attempt.assignment.attempt,
        attempt.job_id,
        attempt.definition.name,
        exc_info=error,
    )
    return Failed(
        error_type=type(error).__name__,
        message=describe_error(error),
        non_retryable=non_retryable,
        retry_after=None if retry_after is None else retry_after.delay,
    )


def describe_error(error: BaseException) -> str:
    """Return an error's text and where it was raised, cleaned and cut to 16 KiB."""
    try:
        text = str(error)
    except Exception as failure:  # the exception's own __str__ is user code
        text = f"({type(error).__name__} has no text: {type(failure).__name__})"
    try:
        frames = traceback.extract_tb(error.__traceback__)
        # Frames of this package say nothing to whoever wrote the handler or the payload.
        where = "".join(traceback.format_list([frame for frame in frames if not frame.filename.startswith(_OWN)]))
    except Exception:  # for example a source file that changed its encoding
        where = ""
    return clean_text(f"{text}\n\n{where}".rstrip() if where else text)


def clean_text(text: str) -> str:
    """Return text that every store and terminal can take: valid UTF-8, no control characters, at most 16 KiB.

    A longer text keeps its beginning and its end.
    """
    half = MAX_ERROR_BYTES // 2
    if len(text) > MAX_ERROR_BYTES:
        text = f"{text[:half]}{text[-half:]}"
    data = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text).encode("utf-8", "replace")
    if len(data) > MAX_ERROR_BYTES:
        data = data[: half - 8] + b"\n[...]\n" + data[-(half - 8) :]
    return data.decode("utf-8", "ignore")
