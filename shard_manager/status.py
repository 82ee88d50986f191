"""What a node tells of itself and of the cluster as it sees it."""

from collections.abc import Mapping
from dataclasses import dataclass

from shard_manager.coordinator import Member, SessionInfo, View
from shard_manager.lease import State
from shard_manager.orders import Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStatus:
    """What a node knows of itself and the cluster, for `shardctl status` and health checks.

    `members`, `sessions`, `leader`, the plan's version (0: no plan seen), reason, orders and `owners` (shard to node)
    are as of the last successful round. `planned_for_s`: for how many seconds the plan has given a shard to its owner,
    as far as this node has seen it. `missing_for_s`: for how many seconds nodes have been missing to which the plan
    still gives shards. `trouble` is the error that the rounds or the heartbeat are retrying, None if all is well.
    """

    member: Member
    joined: bool
    sessions_lost: int
    leader: str | None
    plan_version: int
    plan_reason: str
    orders: Orders
    members: Mapping[str, Member]
    sessions: Mapping[str, SessionInfo]
    owners: Mapping[int, str]
    planned_for_s: Mapping[int, float]
    missing_for_s: Mapping[str, float]
    shards: Mapping[int, State]
    trouble: str | None


class ClusterWatch:
    """Remembers since when things are as they are. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._owners: Mapping[int, str] = {}
        self._planned_s: dict[int, float] = {}
        self._missing_s: dict[str, float] = {}

    def see(self, view: View, now_s: float) -> None:
        """Take note of what was read at `now_s`."""
        owners = view.plan.owners if view.plan is not None else {}
        if owners is not self._owners:
            for shard in owners.keys() | self._owners.keys():
                if owners.get(shard) != self._owners.get(shard):
                    self._planned_s[shard] = now_s
            self._owners = owners
        missing = set(owners.values()) - view.members.keys()
        self._missing_s = {node: self._missing_s.get(node, now_s) for node in missing}

    def planned_for_s(self, now_s: float) -> dict[int, float]:
        """See `ManagerStatus`."""
        return {shard: now_s - since_s for shard, since_s in self._planned_s.items()}

    def missing_for_s(self, now_s: float) -> dict[str, float]:
        """See `ManagerStatus`."""
        return {node: now_s - since_s for node, since_s in self._missing_s.items()}
