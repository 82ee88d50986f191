"""Runs the attempts of one sync handler in threads of its own."""

import threading
from collections import deque
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

    Threads are started when they are first needed and then kept. They are daemons: a handler that never returns cannot
    keep the process from exiting. All methods may be called from any thread.
    """

    def __init__(self, definition: HandlerDefinition, middleware: tuple[Middleware, ...], report: Report) -> None:
        self.definition = definition
        self._middleware = middleware
        self._report = report
        self._waiting: deque[Attempt] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._stopping = False
        # Protects everything above.
        self._changed = threading.Condition()

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Run attempts, or let them wait for a free slot."""
        with self._changed:
            self._waiting.extend(attempts)
            wanted = len(self._waiting) - self._idle
            for _ in range(min(wanted, self.definition.max_concurrency - len(self._threads))):
                name = f"shardwheel-{self.definition.name}-{len(self._threads)}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify(len(attempts))

    def cancel(self, attempt: Attempt) -> None:
        """End an attempt whose `cancel_reason` is set, if it waits in line. A running one has to look for itself."""
        with self._changed:
            if attempt not in self._waiting:
                return
            self._waiting.remove(attempt)
        self._report(attempt, stopped(attempt.cancel_reason or CancelReason.SHUTDOWN))

    def withdraw(self, reason: CancelReason) -> None:
        """End the attempts that wait in line, without having been started."""
        with self._changed:
            waiting, self._waiting = self._waiting, deque()
        for attempt in waiting:
            self._report(attempt, stopped(attempt.cancel_reason or reason))

    def stop(self, timeout_s: float) -> bool:
        """End the threads that are not in a handler. Returns whether all ended within `timeout_s`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if not any(thread.is_alive() for thread in self._threads):
            return True
        share = timeout_s / len(self._threads)
        for thread in self._threads:
            thread.join(share)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._stopping:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                attempt = self._waiting.popleft()
            outcome = execute_sync(attempt, self._middleware)
            self._report(attempt, outcome)
