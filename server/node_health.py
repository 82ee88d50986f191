"""The health of a node, put together from what its parts know."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from server.database_watch import DatabaseWatch
from server.observe.health import Check, Report
from server.observe.loop_lag import LoopLag
from shard_manager.status import ManagerStatus


class Phase(Enum):
    """Where in its life a node is."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


_SAID: Final = {
    Phase.STARTING: "starting",
    Phase.SERVING: "serves",
    Phase.STOPPING: "gives its shards away and stops",
}


class NodeHealth:
    """Implements `server.observe.health.HealthView`. The node sets the attributes as it comes up and goes down."""

    def __init__(self, node: str, lag: LoopLag) -> None:
        self._node = node
        self._lag = lag
        self.phase = Phase.STARTING
        self.waits_for = ""
        """What the start waits for, in words; empty if for nothing."""
        self.loops: Sequence[asyncio.Task[None]] = ()
        """What runs for as long as the node serves."""
        self.database: DatabaseWatch | None = None
        self.manager: Callable[[], ManagerStatus] | None = None
        self.owned: Callable[[], Mapping[int, int]] = dict
        """Shard to epoch of what is served now."""

    def alive(self) -> Report:
        """Whether the process does its work. The answer itself proves that the event loop turns."""
        ended = [task.get_name() for task in self.loops if task.done()]
        broken = bool(ended) and self.phase is Phase.SERVING
        return self._report(
            Check(name="event loop", ok=True, detail=f"at most {self._lag.worst * 1000:.0f} ms late in the last 10 s"),
            Check(name="loops", ok=not broken, detail=f"ended: {', '.join(ended)}" if broken else "run"),
        )

    def ready(self) -> Report:
        """Whether the node should be sent calls."""
        start = Check(
            name="node", ok=self.phase is Phase.SERVING,
            detail=self.waits_for or _SAID[self.phase],
        )  # fmt: skip
        database, manager = self.database, self.manager
        if database is None or manager is None or self.phase is Phase.STARTING:
            # There is nothing more to be looked at yet.
            return self._report(start)
        reachable, said = database.reachable()
        fits, version = database.schema()
        return self._report(
            start,
            Check(name="database", ok=reachable, detail=said),
            Check(name="schema", ok=fits, detail=version),
            self._coordinator(manager()),
        )

    def _coordinator(self, status: ManagerStatus) -> Check:
        held = len(self.owned())
        if status.trouble is None:
            said = f"joined, {held} shards" if status.joined else "the session was lost, joins again"
            return Check(name="coordinator", ok=status.joined, detail=said)
        if status.joined and held:
            # The fence in PostgreSQL keeps these safe, and nobody else can be given them meanwhile.
            said = f"does not answer, {held} shards that are held are served on: {status.trouble}"
            return Check(name="coordinator", ok=True, detail=said)
        return Check(name="coordinator", ok=False, detail=f"no shard is held: {status.trouble}")

    def _report(self, *checks: Check) -> Report:
        return Report(node=self._node, checks=checks)
