"""The leader's part of a round: see who is there, plan, write."""

import logging
from collections.abc import Callable
from dataclasses import replace

from shard_manager.assignment import MoveCause, Planned, plan
from shard_manager.coordinator import Coordinator, View
from shard_manager.errors import NotLeader, PlanConflict
from shard_manager.events import ManagerEvent, PlanWritten
from shard_manager.pacing import Pacing
from shard_manager.timings import ManagerTimings

logger = logging.getLogger(__name__)


class Leader:
    """Plans while its node leads. `max_moves` bounds the shards that one plan moves for balance alone."""

    def __init__(
        self,
        coordinator: Coordinator,
        node: str,
        shards: int,
        timings: ManagerTimings,
        max_moves: int,
        emit: Callable[[ManagerEvent], None],
    ) -> None:
        self._coordinator = coordinator
        self._node = node
        self._shards = shards
        self._timings = timings
        self._max_moves = max_moves
        self._emit = emit
        self._pacing: Pacing | None = None

    def new_session(self, now_s: float) -> None:
        """Forget what was seen in an earlier session; `now_s` is by the clock of `lead`."""
        self._pacing = Pacing(settle=self._timings.settle, loss_guard=self._timings.loss_guard, started_s=now_s)

    async def lead(self, view: View, now_s: float) -> View:
        """If this node leads, bring the plan up to date. Returns the view with the plan to follow now.

        A node that has just been overtaken (other leader, other plan) follows the view as it was until the next read.
        """
        if self._pacing is None:
            self.new_session(now_s)
            assert self._pacing is not None
        pace = self._pacing.pace(view.members, view.plan, now_s)
        if view.leader != self._node:
            return view
        planned = plan(
            view.members.values(),
            view.plan,
            self._shards,
            max_moves=self._max_moves if pace.voluntary else 0,
            hold=pace.hold,
            leader=self._node,
        )
        if not planned.changed:
            return view
        try:
            await self._coordinator.write_plan(planned.plan)
        except (NotLeader, PlanConflict) as overtaken:
            logger.info("plan not written", extra={"node": self._node, "error": str(overtaken)})
            self._coordinator.wake()
            return view
        if any(move.cause is MoveCause.BALANCE for move in planned.moves):
            self._pacing.moved(now_s)
        self._tell(planned)
        return replace(view, plan=planned.plan)

    def _tell(self, planned: Planned) -> None:
        logger.info(
            "plan written",
            extra={"node": self._node, "version": planned.plan.version, "moves": len(planned.moves),
                   "cause": planned.plan.reason},
        )  # fmt: skip
        self._emit(PlanWritten(version=planned.plan.version, moves=len(planned.moves), reason=planned.plan.reason))
