"""The leader's part of a round: see who is there, obey orders, plan, write, end the sessions of evicted nodes."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeAlias

from shard_manager.assignment import MoveCause, Planned, plan
from shard_manager.coordinator import Coordinator, Plan, View
from shard_manager.errors import NotLeader, OrderRefused, PlanConflict, SessionLost
from shard_manager.events import ManagerEvent, NodeEvicted, OrderObeyed, PlanWritten
from shard_manager.order_queue import OrderQueue
from shard_manager.orders import Orders
from shard_manager.pacing import Pace, Pacing
from shard_manager.steering import Decision, Given, PlanChange, decide
from shard_manager.timings import ManagerTimings

logger = logging.getLogger(__name__)

LastOwners: TypeAlias = Callable[[], Awaitable[Mapping[int, str]]]

# A node notices within twice its session's length that the coordinator was wiped.
_NOTICED_AFTER_SESSIONS: Final = 2


class Leader:
    """Plans while its node leads. `max_moves` bounds the shards that one plan moves for balance alone.

    `clock` is the cluster's (UTC), the same for every node that may lead: pins end by it. `last_owners` returns shard
    to node as the fences have it: what a plan begins with that replaces one which is gone, as after the coordinator's
    data were lost under a running cluster.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        node: str,
        shards: int,
        timings: ManagerTimings,
        max_moves: int,
        emit: Callable[[ManagerEvent], None],
        clock: Callable[[], datetime],
        last_owners: LastOwners | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._node = node
        self._shards = shards
        self._timings = timings
        self._max_moves = max_moves
        self._emit = emit
        self._clock = clock
        self._last_owners = last_owners
        self._pacing: Pacing | None = None
        # What was planned for last, if nothing had to change: planning a thousand shards every second costs.
        self._nothing_to_plan: object = None
        self.orders = OrderQueue()
        """Orders that came in and wait for the next round."""

    def new_session(self, now_s: float) -> None:
        """Forget what was seen in an earlier session; `now_s` is by the clock of `lead`."""
        timings = self._timings
        self._pacing = Pacing(
            settle=timings.settle, loss_guard=timings.loss_guard, wave=timings.wave, started_s=now_s
        )  # fmt: skip

    async def lead(self, view: View, now_s: float) -> View:
        """If this node leads, bring the plan up to date. Returns the view with the plan to follow now.

        A node that has just been overtaken (other leader, other plan) follows the view as it was until the next read.
        """
        if self._pacing is None:
            self.new_session(now_s)
            assert self._pacing is not None
        read = view
        if view.plan is None and view.leader == self._node:
            view = await self._recall(self._pacing, view, now_s)
        pace = self._pacing.pace(view.members, view.plan, now_s)
        if view.leader != self._node:
            self.orders.refuse(NotLeader(self._node, view.leader))
            return view
        try:
            obeyed = await self._obey(self._pacing, view, pace, now_s)
            if obeyed is not view:
                # One bounded step at a time.
                pace = replace(pace, voluntary=False, unbounded=False)
            view = await self._keep_up(self._pacing, obeyed, pace, now_s)
        except (NotLeader, PlanConflict) as overtaken:
            logger.info("plan not written", extra={"node": self._node, "error": str(overtaken)})
            self._coordinator.wake()
            return read
        await self._end_evicted(view)
        return view

    async def _recall(self, pacing: Pacing, view: View, now_s: float) -> View:
        """Begin with what the fences say. Their owners may not know yet that the plan is gone, and serve on."""
        owners = await self._last_owners() if self._last_owners is not None else {}
        owners = {shard: node for shard, node in owners.items() if shard < self._shards}
        if not owners:
            return view
        pacing.distrust(now_s + _NOTICED_AFTER_SESSIONS * self._timings.session_ttl.total_seconds())
        return replace(view, plan=Plan(version=0, shards=self._shards, owners=owners))

    async def _obey(self, pacing: Pacing, view: View, pace: Pace, now_s: float) -> View:
        """Carry out the orders that wait, one after the other; whoever gave one is told once it is in the plan."""
        while (waiting := self.orders.first()) is not None:
            given = waiting.given
            try:
                decision = decide(given, view, self._shards, self._clock())
            except OrderRefused as refused:
                self.orders.answer(waiting, refused)
                continue
            change = self._consequences(decision, view, pace, given)
            if not given.dry_run:
                planned = self._plan(view, pace, decision, self._first_moves(decision))
                view = await self._write(pacing, view, planned, now_s)
                change = replace(change, plan=planned.plan)
                self._note(pacing, decision, change, now_s)
            self.orders.answer(waiting, change)
        return view

    def _first_moves(self, decision: Decision) -> int:
        """Moves for balance that an order entails at once: those of a rebalancing are bounded as ever, and for a shard
        that was moved another goes the other way."""
        return self._max_moves if decision.balance else len(decision.moves)

    def _consequences(self, decision: Decision, view: View, pace: Pace, given: Given) -> PlanChange:
        """All that follows from the decision in the end, beyond the first bounded step."""
        if given.dry_run:
            decision = replace(decision, orders=replace(decision.orders, paused=False))
        planned = self._plan(view, pace, decision, None if decision.balance else self._first_moves(decision))
        return PlanChange(
            plan=view.plan if view.plan is not None and given.dry_run else planned.plan,
            moves=planned.moves,
            before=_counts(view.plan, view),
            after=_counts(planned.plan, view),
        )

    def _note(self, pacing: Pacing, decision: Decision, change: PlanChange, now_s: float) -> None:
        if decision.balance:
            pacing.hurry(now_s)
        elif not decision.moves:
            # Whoever drains, undrains, pauses or resumes may not be done yet: let it settle before balance moves.
            pacing.moved(now_s)
        logger.info(
            "order obeyed",
            extra={"node": self._node, "order": decision.reason, "version": change.plan.version,
                   "moves": len(change.moves)},
        )  # fmt: skip
        self._emit(OrderObeyed(order=decision.reason, version=change.plan.version, moves=len(change.moves)))

    async def _keep_up(self, pacing: Pacing, view: View, pace: Pace, now_s: float) -> View:
        """Plan for who is here now, and let orders end whose time is over."""
        orders = view.plan.orders if view.plan is not None else Orders()
        incarnations = {node: member.incarnation for node, member in view.members.items()}
        decision = Decision(orders=orders.without_expired(self._clock(), incarnations), reason="")
        max_moves = None if pace.unbounded else self._max_moves if pace.voluntary else 0
        asked = (dict(view.members), view.plan, decision.orders, pace.hold, max_moves)
        if asked == self._nothing_to_plan:
            if pace.voluntary:
                pacing.balanced()
            return view
        planned = self._plan(view, pace, decision, max_moves)
        if not planned.changed and planned.plan.version:
            self._nothing_to_plan = asked
        if pace.voluntary and not any(move.cause is MoveCause.BALANCE for move in planned.moves):
            pacing.balanced()
        return await self._write(pacing, view, planned, now_s)

    def _plan(self, view: View, pace: Pace, decision: Decision, max_moves: int | None) -> Planned:
        return plan(
            view.members.values(),
            view.plan,
            self._shards,
            orders=decision.orders,
            moves=decision.moves,
            max_moves=max_moves,
            hold=pace.hold,
            leader=self._node,
            reason=decision.reason,
        )

    async def _write(self, pacing: Pacing, view: View, planned: Planned, now_s: float) -> View:
        """Raises `NotLeader` or `PlanConflict`."""
        if not planned.changed:
            if planned.plan.version:
                return view
            recalled = replace(planned.plan, version=1, leader=self._node, reason="the plan was gone: owners recalled")
            planned = replace(planned, plan=recalled)
        await self._coordinator.write_plan(planned.plan)
        if any(move.cause is MoveCause.BALANCE for move in planned.moves):
            pacing.moved(now_s)
        version, reason = planned.plan.version, planned.plan.reason
        logger.info(
            "plan written",
            extra={"node": self._node, "version": version, "moves": len(planned.moves), "cause": reason},
        )
        self._emit(PlanWritten(version=version, moves=len(planned.moves), reason=reason))
        return replace(view, plan=planned.plan)

    async def _end_evicted(self, view: View) -> None:
        """End the sessions that are to be ended and are still there; a leader that died meanwhile may have left them.

        The node's own comes last: with it, leadership ends, and `SessionLost` is raised.
        """
        if view.plan is None:
            return
        evicted = view.plan.orders.evicted
        for node in sorted(evicted, key=lambda node: node == self._node):
            session = view.sessions.get(node)
            if session is None or session.number != evicted[node].session:
                continue
            if await self._coordinator.evict(node, session.number):
                logger.info(
                    "node evicted",
                    extra={"node": self._node, "evicted": node, "incarnation": evicted[node].incarnation},
                )
                self._emit(NodeEvicted(node=node, incarnation=evicted[node].incarnation))
            if node == self._node:
                raise SessionLost(node)


def _counts(plan: Plan | None, view: View) -> Mapping[str, int]:
    """Shards by node, of all nodes that are here or have some."""
    owners = plan.owners.values() if plan is not None else ()
    return dict(sorted((dict.fromkeys(view.members, 0) | Counter(owners)).items()))
