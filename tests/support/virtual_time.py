"""Virtual time: whole clusters in one event loop, whose clock jumps to the next timer as soon as nothing else is due.

A test on it waits for nothing, does the same on a busy machine as on an idle one, and with seeded randomness does the
same every time. Only what stays within the event loop is simulated: no threads, no network.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")
START_S = 1000.0


class _Jumping(selectors.SelectSelector):
    """Never sleeps: what should have been a sleep is added to the clock."""

    now_s = START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(0)
            if not ready:
                raise RuntimeError("everything waits, and no timer is set: this would have lasted for ever")
            return ready
        self.now_s += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` is virtual."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since an arbitrary moment; `time.monotonic` has nothing to do with it."""
        return self._jumping.now_s


def virtual_time(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Make an async test one that runs in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
