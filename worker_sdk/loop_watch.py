"""Notices event loops that a handler blocks, and says so with the place in the code."""

import logging
import sys
import time
import traceback
from collections.abc import Callable

from worker_sdk.async_runner import AsyncRunner

_log = logging.getLogger("worker_sdk")


class LoopWatch:
    """Watches the event loop of one handler from another thread."""

    def __init__(self, runner: AsyncRunner, *, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Warn once each time the loop has not run for `patience_s`."""
        self._runner = runner
        self._patience_s = patience_s
        self._clock = clock
        self._asked_at: float | None = None
        self._thread: int | None = None
        self._warned = False

    def look(self) -> None:
        """Ask the loop for a sign of life, or judge how long it has owed one. To be called again and again."""
        if self._asked_at is None:
            self._asked_at = self._clock()
            self._thread = self._runner.probe(self._answered)
            return
        silence = self._clock() - self._asked_at
        if silence >= self._patience_s and not self._warned:
            self._warned = True
            _log.warning(
                "event loop blocked: handler %r has not let it run for %.1f s; await instead of blocking, or make the"
                " handler a plain function, which runs in threads. It is here:\n%s",
                self._runner.definition.name,
                silence,
                _stack(self._thread),
            )

    def _answered(self) -> None:
        """Take the sign of life. Runs in the watched loop."""
        if self._warned and self._asked_at is not None:
            _log.warning(
                "event loop of handler %r runs again, after %.1f s",
                self._runner.definition.name,
                self._clock() - self._asked_at,
            )
        self._warned = False
        self._asked_at = None


def _stack(thread: int | None) -> str:
    frame = sys._current_frames().get(thread) if thread is not None else None
    return "".join(traceback.format_stack(frame)) if frame is not None else "(unknown)"
