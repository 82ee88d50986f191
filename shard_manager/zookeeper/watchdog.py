"""Ends a session that its own process has stopped renewing.

kazoo keeps a session alive from a thread of its own, so a process whose event loop hangs would keep its shards for ever
and serve none of them. A thread looks after the renewals; when they have failed to come for a session's length, it ends
the session. That a renewal was tried is enough: whether ZooKeeper answers is ZooKeeper's matter.
"""

import threading
from collections.abc import Callable
from typing import Final

_LOOKS_PER_TTL: Final = 20
_MAX_PAUSE_S: Final = 0.5


class Watchdog:
    """Calls `bite` once, in its own thread, when `beat` was not called for `ttl_s` seconds by `clock`."""

    def __init__(self, ttl_s: float, clock: Callable[[], float], bite: Callable[[], None]) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._bite = bite
        self._last_s = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="zookeeper-watchdog", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """The process lives."""
        self._last_s = self._clock()

    @property
    def late(self) -> bool:
        """Whether there was no beat for too long."""
        return self._clock() - self._last_s >= self._ttl_s

    def dismiss(self) -> None:
        """Stop watching."""
        self._over.set()

    def _watch(self) -> None:
        pause_s = min(self._ttl_s / _LOOKS_PER_TTL, _MAX_PAUSE_S)
        while not self._over.wait(pause_s):
            if self.late:
                self._bite()
                return
