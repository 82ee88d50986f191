"""Sessions that will not end in time because the database's clock was set back.

A renewal never sets an end further ahead than the session's length. An end that lies further ahead was set before the
clock went back: a living node will soon renew and mend it, a dead one's would block its shards for as long as the clock
was set back. So whoever has watched such an end stand still for a session's length, by its own clock, deletes it.
"""

from collections.abc import Iterable
from datetime import datetime


class StuckSessions:
    """What one node has seen. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, datetime], float] = {}

    def find(self, ahead: Iterable[tuple[int, datetime, float]], now_s: float) -> list[tuple[int, datetime]]:
        """Of the sessions (number, end, length in seconds) whose end is too far ahead now, those that are stuck."""
        present = {(session, expires_at): ttl_s for session, expires_at, ttl_s in ahead}
        self._seen = {key: self._seen.get(key, now_s) for key in present}
        return [key for key, since_s in self._seen.items() if now_s - since_s >= present[key]]
