"""What a node sees of the cluster, and since when; it tells of what has changed."""

import logging
from collections.abc import Callable, Mapping

from shard_manager.coordinator import Member, Plan, View
from shard_manager.events import ExclusionChanged, LeaderChanged, ManagerEvent, PlanSeen
from shard_manager.orders import Orders

logger = logging.getLogger(__name__)


class Sight:
    """The latest view of the node `me`. Times are seconds of any monotonic clock."""

    def __init__(self, me: Member, emit: Callable[[ManagerEvent], None]) -> None:
        self._me = me
        self._emit = emit
        self._planned_s: dict[int, float] = {}
        self._missing_s: dict[str, float] = {}
        self.view: View | None = None
        self.excluded = ""
        """The order that keeps shards from this node: "drained", "evicted", or "" for none."""

    @property
    def plan(self) -> Plan | None:
        """The plan in force, as far as it is known."""
        return self.view.plan if self.view is not None else None

    @property
    def leader(self) -> str | None:
        """Who leads, as far as it is known."""
        return self.view.leader if self.view is not None else None

    @property
    def orders(self) -> Orders:
        """The orders in force, as far as they are known."""
        return self.plan.orders if self.plan is not None else Orders()

    @property
    def owners(self) -> Mapping[int, str]:
        """Shard to node by the plan."""
        return self.plan.owners if self.plan is not None else {}

    def see(self, view: View, now_s: float) -> None:
        """Take note of what was read at `now_s`."""
        leader, plan, owners = self.leader, self.plan, self.owners
        self.view = view
        if view.leader != leader:
            logger.info("leader changed", extra={"node": self._me.node, "leader": view.leader, "previous": leader})
            self._emit(LeaderChanged(leader=view.leader, previous=leader))
        self._note_times(owners, view, now_s)
        self._note_exclusion()
        if view.plan is not None and view.plan.version != (plan.version if plan is not None else 0):
            self._emit(PlanSeen(version=view.plan.version, mine=len(view.plan.shards_of(self._me.node))))

    def planned_for_s(self, now_s: float) -> dict[int, float]:
        """For how long the plan has given a shard to its owner, as far as that was seen."""
        return {shard: now_s - since_s for shard, since_s in self._planned_s.items()}

    def missing_for_s(self, now_s: float) -> dict[str, float]:
        """For how long nodes have been missing to which the plan still gives shards."""
        return {node: now_s - since_s for node, since_s in self._missing_s.items()}

    def _note_times(self, before: Mapping[int, str], view: View, now_s: float) -> None:
        after = self.owners
        if after is not before:
            changed = (shard for shard in after.keys() | before.keys() if after.get(shard) != before.get(shard))
            self._planned_s.update(dict.fromkeys(changed, now_s))
        missing = set(after.values()) - view.members.keys()
        self._missing_s = {node: self._missing_s.get(node, now_s) for node in missing}

    def _note_exclusion(self) -> None:
        me, orders = self._me, self.orders
        excluded = ""
        if orders.excludes(me.node, me.incarnation):
            excluded = "drained" if me.node in orders.drained else "evicted"
        if excluded == self.excluded:
            return
        self.excluded = excluded
        if excluded:
            logger.warning("node is given no shards until it is undrained", extra={"node": me.node, "order": excluded})
        else:
            logger.info("node may be given shards again", extra={"node": me.node})
        self._emit(ExclusionChanged(node=me.node, order=excluded))
