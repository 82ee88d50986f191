"""The worker of the cluster tests: `python -m worker_sdk tests.cluster.worker_program:worker`.

Every execution is written to the file that `SHARDWHEEL_TEST_EXECUTIONS` names: a line when the handler is entered, and
a line when it is left, which is on the disk before the handler's outcome is reported. Each result says which claim and
which process it comes from.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.cluster.journal import Journal
from worker_sdk import Context, Snooze, Worker

EXECUTIONS_VARIABLE: Final = "SHARDWHEEL_TEST_EXECUTIONS"

SHORT: Final = "cluster.short"
KEYED: Final = "cluster.keyed"
FLAKY: Final = "cluster.flaky"
OVERRUN: Final = "cluster.overrun"
LONG: Final = "cluster.long"
SNOOZED: Final = "cluster.snoozed"
STUBBORN: Final = "cluster.stubborn"

COMPLETED: Final = "completed"
"""Outcome, in the file, of a handler that came to its end; others are names of exceptions."""

SNOOZE_S: Final = 0.3
_OVERRUN_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a job asks of its handler."""

    first_s: float = 0.0
    """How long its first claim takes."""
    later_s: float | None = None
    """How long later claims take; None: as long as the first."""
    failures: int = 0
    """How many tries of `FLAKY` fail."""

    def seconds(self, claim: int) -> float:
        """Return how long a claim takes."""
        return self.first_s if claim == 1 or self.later_s is None else self.later_s


class Flaky(Exception):
    """A try that was to fail."""


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ[EXECUTIONS_VARIABLE]))


def _start(context: Context) -> None:
    claimed_at = context.started_at
    _journal().write(
        "start",
        job=context.job_id,
        claim=context.claim,
        attempt=context.attempt,
        handler=context.handler,
        worker=context.worker,
        pid=os.getpid(),
        claimed_at=None if claimed_at is None else claimed_at.timestamp(),
    )


def _end(context: Context, outcome: str) -> None:
    _journal().write(
        "end", job=context.job_id, claim=context.claim, worker=context.worker, pid=os.getpid(), outcome=outcome
    )


@asynccontextmanager
async def _recorded(context: Context) -> AsyncIterator[None]:
    _start(context)
    try:
        yield
    except BaseException as error:
        _end(context, type(error).__name__)
        raise
    _end(context, COMPLETED)
    await asyncio.wrap_future(_journal().durable())


@contextmanager
def _recorded_in_thread(context: Context) -> Iterator[None]:
    _start(context)
    try:
        yield
    except BaseException as error:
        _end(context, type(error).__name__)
        raise
    _end(context, COMPLETED)
    _journal().durable().result()


def _record(context: Context) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
    return _recorded_in_thread(context) if context.handler in (LONG, STUBBORN) else _recorded(context)


def _proof(context: Context) -> dict[str, object]:
    return {"claim": context.claim, "worker": context.worker, "pid": os.getpid()}


worker = Worker(middleware=[_record])


@worker.handler(SHORT, max_concurrency=60)
async def short(order: Order, context: Context) -> dict[str, object]:
    """Wait."""
    await asyncio.sleep(order.seconds(context.claim))
    return _proof(context)


@worker.handler(KEYED, max_concurrency=20)
async def keyed(order: Order, context: Context) -> dict[str, object]:
    """Wait; its jobs have concurrency keys."""
    await asyncio.sleep(order.seconds(context.claim))
    return _proof(context)


@worker.handler(FLAKY, max_concurrency=20)
async def flaky(order: Order, context: Context) -> dict[str, object]:
    """Fail at first."""
    await asyncio.sleep(order.first_s)
    if context.attempt <= order.failures:
        raise Flaky(f"try {context.attempt}")
    return _proof(context)


@worker.handler(OVERRUN, max_concurrency=10)
async def overrun(order: Order, context: Context) -> dict[str, object]:
    """Take far too long at first; its jobs have a timeout."""
    await asyncio.sleep(_OVERRUN_S if context.attempt == 1 else order.first_s)
    return _proof(context)


@worker.handler(SNOOZED, max_concurrency=20)
async def snoozed(order: Order, context: Context) -> dict[str, object]:
    """Ask to be run again a little later, at first."""
    await asyncio.sleep(order.first_s)
    if context.claim == 1:
        raise Snooze(SNOOZE_S)
    return _proof(context)


@worker.handler(LONG, max_concurrency=24)
def long(order: Order, context: Context) -> dict[str, object]:
    """Wait in a thread, and stop when told to."""
    context.cancelled.wait(order.seconds(context.claim))
    context.raise_if_cancelled()
    return _proof(context)


@worker.handler(STUBBORN, max_concurrency=4)
def stubborn(order: Order, context: Context) -> dict[str, object]:
    """Wait in a thread, and hear nothing."""
    time.sleep(order.seconds(context.claim))
    return _proof(context)
