"""Runs the attempts of one async handler in an event loop and thread of its own."""

import asyncio
import contextvars
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

# A lane gives way to the other tasks of the loop after this many attempts that never waited.
_LANE_ATTEMPTS = 50


class AsyncRunner:
    """At most `max_concurrency` attempts at a time; more of them wait in line.

    Attempts run in tasks called lanes. A lane takes one attempt after the other, for a task of its own costs more than
    a short handler; as soon as an attempt waits for something, another lane takes over the line. A lane ends after an
    attempt that was cancelled or that has changed context variables, so that no attempt sees a trace of another.

    A handler that blocks its event loop delays the attempts of this handler only.
    """

    def __init__(self, definition: HandlerDefinition, middleware: tuple[Middleware, ...], report: Report) -> None:
        self.definition = definition
        self._middleware = middleware
        self._report = report
        self._waiting: deque[Attempt] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._lanes_are_coming = False
        self._thread = LoopThread(f"shardwheel-{definition.name}")

    @property
    def busy(self) -> bool:
        """Whether attempts run or wait. May be read from any thread."""
        return bool(self._lanes or self._waiting)

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
        self._waiting.extend(attempts)
        self._open_lanes()

    def _open_lanes(self) -> None:
        """Open a lane, or as many as are held up already: if those wait, the next ones probably will."""
        self._lanes_are_coming = False
        held_up = len(self._lanes)
        for _ in range(min(len(self._waiting), self.definition.max_concurrency - held_up, max(1, held_up))):
            lane = asyncio.get_running_loop().create_task(self._run_lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._lane_ended)

    def _lane_ended(self, lane: "asyncio.Task[None]") -> None:
        self._lanes.discard(lane)
        if self._waiting:
            self._open_lanes()

    async def _run_lane(self) -> None:
        task = asyncio.current_task()
        untouched = contextvars.copy_context()
        for _ in range(_LANE_ATTEMPTS):
            if not self._waiting:
                return
            attempt = self._waiting.popleft()
            if self._waiting and not self._lanes_are_coming:
                # They come to their turn when this lane first waits for something.
                self._lanes_are_coming = True
                asyncio.get_running_loop().call_soon(self._open_lanes)
            attempt.task = task
            outcome = await execute_async(attempt, self._middleware)
            attempt.task = None
            self._report(attempt, outcome)
            if task is None or task.cancelling() or contextvars.copy_context() != untouched:
                return

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
