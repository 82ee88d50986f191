"""Notices event loops that a handler blocks, and says so with the place in the code."""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from worker_sdk import execution
from worker_sdk.async_runner import AsyncRunner

_log = logging.getLogger("worker_sdk")


class _Question:
    """Asks a loop for a sign of life."""

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.thread: int | None = None
        self.answered = False
        self.warned = False


class LoopWatch:
    """Watches the event loop of one handler from another thread."""

    def __init__(self, runner: AsyncRunner, *, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Warn once each time the loop has not run for `patience_s`."""
        self._runner = runner
        self._patience_s = patience_s
        self._clock = clock
        self._question: _Question | None = None

    def look(self) -> None:
        """Ask the loop for a sign of life, or judge how long it has owed one. To be called again and again."""
        question = self._question
        if question is None or question.answered:
            if not self._runner.busy:
                return
            self._question = question = _Question(self._clock())
            question.thread = self._runner.probe(partial(self._answer, question))
            return
        silence = self._clock() - question.asked_at
        if silence >= self._patience_s and not question.warned:
            _log.warning(
                "event loop blocked: handler %r has not let it run for %.1f s; await instead of blocking, or make the"
                " handler a plain function, which runs in threads. It is here:\n%s",
                self._runner.definition.name,
                silence,
                _place(question.thread),
            )
            question.warned = True

    def _answer(self, question: _Question) -> None:
        """Give the sign of life. Runs in the watched loop."""
        question.answered = True
        if question.warned:
            silence = self._clock() - question.asked_at
            _log.warning("event loop of handler %r runs again, after %.1f s", self._runner.definition.name, silence)


def _place(thread: int | None) -> str:
    """Return the stack of a thread, from the handler on."""
    frame = sys._current_frames().get(thread) if thread is not None else None
    if frame is None:
        return "(unknown)"
    stack = traceback.extract_stack(frame)
    ours = [position for position, entry in enumerate(stack) if entry.filename == execution.__file__]
    return "".join(traceback.format_list(stack[ours[-1] + 1 :] if ours else stack)).rstrip()
