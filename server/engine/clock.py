"""The database's clock, seen from this process.

Whether a job is due is decided by the database; the node only has to wake in time. It estimates the database's clock
as its own monotonic clock plus an offset, observed with every claim. The estimate may be a few milliseconds wrong and
the database's clock may jump: then the node looks too early or too late once, and nothing worse happens.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A larger change of the offset than this is a jump of the database's clock, not jitter of the round trip.
JUMP_S: Final = 1.0
# How fast the estimate may drift towards later observations with a longer round trip.
_DRIFT_PER_S: Final = 0.0005


class DatabaseClock:
    """Estimates the database's now()."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._error = float("inf")
        self._observed_at = time.monotonic()
        self.jumped_at = time.monotonic()

    def observe(self, database_now: datetime, sent: float, received: float) -> None:
        """Take in a database time that was read between two readings of the monotonic clock.

        A statement's now() is taken near its start, so the true offset lies within the round trip; the tightest
        observation wins, and ages so that drift is followed.
        """
        error = received - sent
        offset = (database_now - _EPOCH).total_seconds() - (sent + min(error / 2, 0.001))
        aged = self._error + (received - self._observed_at) * _DRIFT_PER_S
        if abs(offset - self._offset) > JUMP_S + error:
            self.jumped_at = received
            aged = float("inf")
        if error <= aged:
            self._offset, self._error, self._observed_at = offset, error, received

    def now(self) -> datetime:
        """Return the estimated time of the database, in UTC."""
        return _EPOCH + timedelta(seconds=time.monotonic() + self._offset)

    def ahead(self) -> timedelta | None:
        """Return how far the clock of this machine is ahead of the database's; None before the first observation."""
        if self._error == float("inf"):
            return None
        return timedelta(seconds=time.time() - time.monotonic() - self._offset)

    def now_ms(self) -> int:
        """Return the estimated time of the database in whole milliseconds since 1970, rounded down."""
        return int((time.monotonic() + self._offset) * 1000)


def tick_of(instant: datetime) -> int:
    """Return an instant in whole milliseconds since 1970, rounded up: nothing is due before it."""
    return -((_EPOCH - instant) // timedelta(milliseconds=1))
