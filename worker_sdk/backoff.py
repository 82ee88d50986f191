"""How long to wait before trying something again."""

from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

_random = SystemRandom()


def backoff_delay_s(failures: int, *, initial_s: float, maximum_s: float, draw: float) -> float:
    """Return the delay after `failures` failures in a row (from 1): doubling, capped, and jittered by `draw` (0 to 1).

    The delay lies between half of the bound and the bound ("equal jitter"), so that callers which failed together
    come back spread out, and none of them at once.
    """
    bound = min(maximum_s, initial_s * 2.0 ** min(failures - 1, 30))
    return bound * (0.5 + 0.5 * draw)


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Counts failures in a row and says how long to wait after each."""

    initial_s: float = 0.1
    maximum_s: float = 2.0
    draw: Callable[[], float] = _random.random
    failures: int = 0

    def next_delay_s(self) -> float:
        """Count a failure and return the delay after it."""
        self.failures += 1
        return backoff_delay_s(self.failures, initial_s=self.initial_s, maximum_s=self.maximum_s, draw=self.draw())

    def reset(self) -> None:
        """Forget the failures, after a success."""
        self.failures = 0
