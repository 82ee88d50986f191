"""How late the event loop is: everything of a node happens in it, so what holds it up holds up all."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 0.25
WINDOW_S: Final = 10.0


class LoopLag:
    """Sleeps again and again, and measures how much later than asked it is woken. All times in seconds.

    `observe` is told of each measurement. `worst` is the largest of the latest ten seconds.
    """

    def __init__(self, observe: Callable[[float], None] = lambda lag_s: None) -> None:
        self._observe = observe
        self._latest: deque[float] = deque(maxlen=round(WINDOW_S / INTERVAL_S))

    @property
    def worst(self) -> float:
        """The largest lag of the latest ten seconds; 0 before the first measurement."""
        return max(self._latest, default=0.0)

    async def run(self) -> None:
        """Measure for ever."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            lag = max(0.0, loop.time() - asked)
            self._latest.append(lag)
            self._observe(lag)
