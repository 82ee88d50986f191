"""Tells workers on time that an attempt is over its time.

A timer wheel holds the end of every watched attempt. The sweep of overdue rows stands behind it: an attempt that this
node does not watch is told a little later.
"""

import asyncio
import logging
from collections.abc import Callable

from server.domain.job import AttemptRef
from server.engine.clock import DatabaseClock, tick_of
from server.engine.registry import Registry, RunningEntry
from server.engine.wheel import TimerWheel, WheelFull

log = logging.getLogger(__name__)


class Deadlines:
    """Watches the ends of running attempts."""

    def __init__(
        self, *, registry: Registry, clock: DatabaseClock, over: Callable[[RunningEntry], None], capacity: int = 100_000
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._over = over
        self._wheel: TimerWheel[AttemptRef] = TimerWheel(capacity=capacity)
        self._wake = asyncio.Event()

    def watch(self, entry: RunningEntry) -> None:
        """Watch an attempt, if its time is limited."""
        if entry.timeout_at is None:
            return
        earliest = self._wheel.next_tick()
        tick = tick_of(entry.timeout_at)
        try:
            self._wheel.insert(entry.ref, tick, entry.ref)
        except WheelFull:
            return
        if earliest is None or tick < earliest:
            self._wake.set()

    def forget(self, ref: AttemptRef) -> None:
        """Stop watching an attempt."""
        self._wheel.cancel(ref)

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            tick = self._wheel.next_tick()
            timeout = 60.0 if tick is None else (tick - self._clock.now_ms()) / 1000 + 0.001
            try:
                async with asyncio.timeout(min(max(timeout, 0.001), 60.0)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            for ref in self._wheel.advance(self._clock.now_ms()):
                self._tell(ref)

    def _tell(self, ref: AttemptRef) -> None:
        entry = self._registry.get(ref)
        if entry is None:
            return
        try:
            self._over(entry)
        except Exception:
            log.exception("attempt over its time could not be told", extra={"job_id": ref.job_id, "claim": ref.claim})
