"""The pause after a failure: it doubles up to a limit, and a success resets it."""

import random
from datetime import timedelta


class Backoff:
    """Pauses of one loop. `draw` gives numbers in [0, 1): each pause is shortened by up to half, so that nodes that
    failed together do not come back together."""

    def __init__(self, initial: timedelta, maximum: timedelta, draw: random.Random | None = None) -> None:
        self._initial_s = initial.total_seconds()
        self._maximum_s = maximum.total_seconds()
        self._draw = draw if draw is not None else random.SystemRandom()
        self._next_s = self._initial_s

    def failed(self) -> float:
        """Return how many seconds to pause."""
        pause_s = self._next_s * (1 - self._draw.random() / 2)
        self._next_s = min(self._next_s * 2, self._maximum_s)
        return pause_s

    def succeeded(self) -> None:
        """Start over at the shortest pause."""
        self._next_s = self._initial_s
