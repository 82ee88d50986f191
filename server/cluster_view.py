"""Shows the API what the shard manager last saw of the cluster."""

from collections.abc import Callable, Sequence

from server.api.ports import MemberView, PlanView
from shard_manager.status import ManagerStatus


class ManagerClusterView:
    """Implements `server.api.ports.ClusterView` from a shard manager."""

    def __init__(self, status: Callable[[], ManagerStatus], kind: str) -> None:
        self._status = status
        self._kind = kind

    @property
    def kind(self) -> str:
        """Kind of the coordinator."""
        return self._kind

    def members(self) -> Sequence[MemberView]:
        """Return the live nodes by name, this one included."""
        status = self._status()
        members = {**status.members, status.member.node: status.members.get(status.member.node, status.member)}
        return [
            MemberView(node=one.node, address=one.address, state=one.state.value, weight=one.weight)
            for _, one in sorted(members.items())
        ]

    def leader(self) -> str:
        """Return the leader's name, empty if it is unknown."""
        return self._status().leader or ""

    def plan(self) -> PlanView:
        """Return the plan as of the latest round."""
        status = self._status()
        return PlanView(version=status.plan_version, owners=status.owners)
