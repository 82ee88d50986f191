"""Looks once a second whether the database answers, and whether it still is the one that the node began with."""

import logging
import time
from collections.abc import Callable
from typing import Final

from server.store.coordination import ClusterState, OtherCoordinator, read_cluster_state
from server.store.database import Database
from server.store.errors import Refused, StoreError
from server.store.migrate import VERSION

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
# Of one look. A database that has been silent for longer than the second counts as away, after the third the node says
# of itself that it is of no use: others may be better off.
LOOK_S: Final = 2.0
AWAY_AFTER_S: Final = 3.0
UNFIT_AFTER_S: Final = 15.0


class DatabaseWatch:
    """What the latest looks have found. `place` is the coordinator of this node; times are seconds, monotonic.

    `fit` is told whether this node can work, at each change. `replaced` is told when another coordinator is in charge.
    """

    def __init__(
        self,
        database: Database,
        *,
        place: str,
        fit: Callable[[bool], None],
        replaced: Callable[[OtherCoordinator], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._place = place
        self._fit = fit
        self._replaced = replaced
        self._clock = clock
        self._answered_s = clock()
        self._error = ""
        self._first: ClusterState | None = None
        self._latest: ClusterState | None = None

    async def look(self) -> None:
        """Look once."""
        try:
            state = await read_cluster_state(self._database, timeout=LOOK_S)
        except Refused as error:
            # It answers, and its tables are not ours.
            self._answered_s, self._error, self._latest = self._clock(), str(error), None
            return
        except StoreError as error:
            self._error = str(error).strip()
            if self.silent_s >= UNFIT_AFTER_S:
                self._fit(False)
            return
        self._answered_s, self._error, self._latest = self._clock(), "", state
        self._first = self._first or state
        self._fit(True)
        if state.coordinator != self._place:
            self._replaced(OtherCoordinator(self._place, state.coordinator or "none"))

    @property
    def silent_s(self) -> float:
        """Seconds since the latest answer."""
        return self._clock() - self._answered_s

    def reachable(self) -> tuple[bool, str]:
        """Whether the database answers, and what to say of it."""
        if self.silent_s < AWAY_AFTER_S:
            return True, "answers"
        return False, f"no answer for {self.silent_s:.0f} s: {self._error or 'the look at it hangs'}"

    def schema(self) -> tuple[bool, str]:
        """Whether the schema is one that this version serves, and that of the cluster that the node began with."""
        state, first = self._latest, self._first
        if state is None or first is None:
            return self._error == "", self._error or "not read yet"
        if (state.cluster_id, state.shards) != (first.cluster_id, first.shards):
            return False, (
                f"the database is that of cluster {state.cluster_id} with {state.shards} shards now, this node began "
                f"with {first.cluster_id} and {first.shards}; restart it"
            )
        if state.compatible_from > VERSION:
            return False, f"version {state.version} needs nodes of schema version {state.compatible_from}; upgrade"
        return True, f"version {state.version}"
