"""Runs the attempts of one async handler in an event loop and thread of its own."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from worker_sdk.attempt import Attempt
from worker_sdk.execution import execute_async, stopped
from worker_sdk.handler import HandlerDefinition
from worker_sdk.loop_thread import LoopThread
from worker_sdk.middleware import Middleware
from worker_sdk.outcomes import CancelReason, Outcome

Report = Callable[[Attempt, Outcome], None]
"""Takes the outcome of an attempt. Called from the runner's thread; must not block."""


class AsyncRunner:
    """At most `max_concurrency` attempts at a time; more of them wait in line.

    A handler that blocks its event loop delays the attempts of this handler only.
    """

    def __init__(self, definition: HandlerDefinition, middleware: tuple[Middleware, ...], report: Report) -> None:
        self.definition = definition
        self._middleware = middleware
        self._report = report
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._waiting: deque[Attempt] = deque()
        self._thread = LoopThread(f"shardwheel-{definition.name}")

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Run attempts, or let them wait for a free slot. Called from any thread, as are all methods below."""
        self._thread.loop.call_soon_threadsafe(self._admit, attempts)

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt whose `cancel_reason` is set: `CancelledError` is raised in its handler."""
        self._thread.loop.call_soon_threadsafe(self._cancel, attempt)

    def withdraw(self, reason: CancelReason) -> None:
        """End the attempts that wait in line, without having been started."""
        self._thread.loop.call_soon_threadsafe(self._withdraw, reason)

    def probe(self, answer: Callable[[], None]) -> int | None:
        """Have `answer` called in the event loop, to see whether it is blocked; return its thread's identity."""
        self._thread.loop.call_soon_threadsafe(answer)
        return self._thread.ident

    def stop(self, timeout_s: float) -> bool:
        """End the event loop. Returns whether it ended within `timeout_s`."""
        return self._thread.stop(timeout_s)

    def _admit(self, attempts: Sequence[Attempt]) -> None:
        free = self.definition.max_concurrency - len(self._running)
        for attempt in attempts:
            if free > 0:
                free -= 1
                self._start(attempt)
            else:
                self._waiting.append(attempt)

    def _start(self, attempt: Attempt) -> None:
        self._running[attempt] = asyncio.get_running_loop().create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> None:
        # Only now: a task that is cancelled before its first step would end without an outcome. An attempt that is
        # told to stop before this line finds its reason by itself.
        attempt.task = asyncio.current_task()
        outcome = await execute_async(attempt, self._middleware)
        attempt.task = None
        del self._running[attempt]
        self._report(attempt, outcome)
        if self._waiting and len(self._running) < self.definition.max_concurrency:
            self._start(self._waiting.popleft())

    def _cancel(self, attempt: Attempt) -> None:
        if attempt.task is not None:
            attempt.task.cancel()
        elif attempt in self._waiting:
            self._waiting.remove(attempt)
            self._report(attempt, stopped(attempt.cancel_reason or CancelReason.SHUTDOWN))

    def _withdraw(self, reason: CancelReason) -> None:
        waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            self._report(attempt, stopped(attempt.cancel_reason or reason))
