"""Shows the API what the shard manager last saw of the cluster."""

from collections.abc import Callable, Sequence

from server.api.ports import MemberView, PinView, PlanView
from shard_manager.coordinator import Member, MemberState
from shard_manager.orders import Orders
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
            MemberView(
                node=one.node,
                address=one.address,
                state=_state(one, status.orders),
                weight=one.weight,
                incarnation=one.incarnation,
                joined_at=status.sessions[one.node].opened_at if one.node in status.sessions else None,
            )
            for _, one in sorted(members.items())
        ]

    def leader(self) -> str:
        """Return the leader's name, empty if it is unknown."""
        status = self._status()
        # What was read in a session that is over says nothing of who leads now.
        return (status.leader or "") if status.joined else ""

    def plan(self) -> PlanView:
        """Return the plan as of the latest round."""
        status = self._status()
        orders = status.orders
        return PlanView(
            version=status.plan_version,
            owners=status.owners,
            reason=status.plan_reason,
            paused=orders.paused,
            drained=sorted(orders.drained),
            evicted=sorted(orders.evicted),
            pins=[PinView(shard=shard, node=pin.node, until=pin.until) for shard, pin in orders.pins.items()],
            planned_for_s=status.planned_for_s,
            missing_for_s=status.missing_for_s,
        )

    def trouble(self) -> str:
        """Say what keeps this node from working with the coordinator, empty if nothing does."""
        return self._status().trouble or ""


def _state(member: Member, orders: Orders) -> str:
    """What a node says of itself, unless an order keeps it from being given shards."""
    if member.state is not MemberState.UP or not orders.excludes(member.node, member.incarnation):
        return member.state.value
    return "drained" if member.node in orders.drained else "evicted"
