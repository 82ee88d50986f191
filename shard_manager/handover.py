"""How long a node goes on with shards that the plan has given to others.

Where the coordinator does not tell of a new plan at once, the new owner may learn of it later than the old one, by the
time between two looks. A shard that is released at once would have no owner for so long, so its old owner waits until
the new one must be asking for the lease.
"""

from collections.abc import Collection
from datetime import timedelta

from shard_manager.coordinator import MemberState, View


class Handover:
    """What one node still serves. Times are seconds of any monotonic clock."""

    def __init__(self, node: str, notice: timedelta) -> None:
        self._node = node
        self._notice_s = notice.total_seconds()
        self._until_s: dict[int, float] = {}

    def keeps(self, view: View, owned: Collection[int], now_s: float) -> frozenset[int]:
        """Those of `owned` that the plan gives to others who cannot have learnt of it yet."""
        if view.plan is None or not self._notice_s:
            return frozenset()
        given = {
            shard
            for shard in owned
            if (owner := view.plan.owners.get(shard)) is not None
            and owner != self._node
            and owner in view.members
            and view.members[owner].state is MemberState.UP
        }
        self._until_s = {shard: self._until_s.get(shard, now_s + self._notice_s) for shard in given}
        return frozenset(shard for shard, until_s in self._until_s.items() if until_s > now_s)

    def next_end_s(self, now_s: float) -> float | None:
        """When the first of them is to be let go; None: there is none."""
        return min((until_s for until_s in self._until_s.values() if until_s > now_s), default=None)
