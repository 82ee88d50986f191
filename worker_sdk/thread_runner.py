"""Runs the attempts of one sync handler in threads of its own."""

import queue
import threading
from collections.abc import Callable, Sequence

from worker_sdk.attempt import Attempt
from worker_sdk.execution import execute_sync, stopped
from worker_sdk.handler import HandlerDefinition
from worker_sdk.middleware import Middleware
from worker_sdk.outcomes import CancelReason, Outcome

Report = Callable[[Attempt, Outcome], None]
"""Takes the outcome of an attempt. Called from the runner's threads; must not block."""


class ThreadRunner:
    """At most `max_concurrency` attempts at a time, each in a thread; more of them wait in line.

    Threads are started as jobs come, and kept. They are daemons: a handler that never returns cannot keep the process
    from exiting. All methods may be called from any thread but `submit`, which belongs to one.
    """

    def __init__(self, definition: HandlerDefinition, middleware: tuple[Middleware, ...], report: Report) -> None:
        self.definition = definition
        self._middleware = middleware
        self._report = report
        self._line: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        # Attempts that nobody has taken yet. Whoever removes one, in one step, has to see to it; the line itself may
        # still hold attempts that were taken out of here.
        self._waiting: dict[Attempt, None] = {}
        self._threads: list[threading.Thread] = []

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Run attempts, or let them wait for a free slot."""
        for attempt in attempts:
            self._waiting[attempt] = None
            self._line.put(attempt)
        for _ in range(min(len(attempts), self.definition.max_concurrency - len(self._threads))):
            name = f"shardwheel-{self.definition.name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def cancel(self, attempt: Attempt) -> None:
        """End an attempt whose `cancel_reason` is set, if it waits in line. A running one has to look for itself."""
        if self._take(attempt):
            self._report(attempt, stopped(attempt.cancel_reason or CancelReason.SHUTDOWN))

    def withdraw(self, reason: CancelReason) -> None:
        """End the attempts that wait in line, without having been started."""
        for attempt in list(self._waiting):
            if self._take(attempt):
                self._report(attempt, stopped(attempt.cancel_reason or reason))

    def stop(self, timeout_s: float) -> bool:
        """End the threads that are not in a handler. Returns whether all ended within `timeout_s`."""
        for _ in self._threads:
            self._line.put(None)
        for thread in self._threads:
            thread.join(timeout_s / len(self._threads))
        return not any(thread.is_alive() for thread in self._threads)

    def _take(self, attempt: Attempt) -> bool:
        return self._waiting.pop(attempt, attempt) is None

    def _run(self) -> None:
        while True:
            attempt = self._line.get()
            if attempt is None:
                return
            if self._take(attempt):
                self._report(attempt, execute_sync(attempt, self._middleware))
