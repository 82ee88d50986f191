"""How long a draining node serves on, and when it gives up waiting."""

from shard_manager.coordinator import MemberState, View
from shard_manager.timings import ManagerTimings


class Drain:
    """One drain, begun at `began_s`. Times are seconds of any monotonic clock."""

    def __init__(self, node: str, timings: ManagerTimings, began_s: float) -> None:
        self._node = node
        self._handover_until_s = began_s + timings.drain_handover.total_seconds()
        self._over_at_s = began_s + timings.drain_limit.total_seconds()
        self._leave_limit_s = timings.leave_limit.total_seconds()
        self._served_until_s = began_s

    def serves_on(self, view: View, now_s: float) -> bool:
        """Whether to keep the shards that the plan still leaves with this node: somebody is there to be given them,
        and the time for that is not over."""
        others = (member for node, member in view.members.items() if node != self._node)
        return now_s < self._handover_until_s and any(member.state is MemberState.UP for member in others)

    def is_overdue(self, *, serving: bool, now_s: float) -> bool:
        """Whether to end without the coordinator's answer; `serving` says whether some shard still runs here."""
        if serving:
            self._served_until_s = now_s
        return now_s >= self._over_at_s or now_s - self._served_until_s >= self._leave_limit_s
