"""What people may order, and what each order does to the orders in force. Pure; the leader alone calls `decide`.

Every order may be repeated: the second time it changes nothing. (An undrained node that is not there is unknown then.)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeAlias, assert_never

from shard_manager.assignment import Move, can_serve
from shard_manager.coordinator import Plan, View
from shard_manager.errors import (
    ClusterPaused,
    LastNode,
    NodeUnfit,
    PlanChanged,
    ProcessGone,
    TooManyOrders,
    UnknownNode,
    UnknownShard,
)
from shard_manager.orders import MAX_NAMED_NODES, Eviction, Orders, Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """Give `node` no shards from now on, and take those that it has gracefully. Unless with `force`, the last node that
    can serve is not drained."""

    node: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainNode:
    """Let `node`, drained or evicted, have shards again."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictNode:
    """Take all shards from `node`, which need not do its part, and give this process of it none. `force` as above.

    `incarnation` is the process that is meant, 0: the one that is here. If given, it may be out of sight.
    """

    node: str
    force: bool = False
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveShard:
    """Give `shard` to `node`, and with `pin` keep it there for so long; without, an earlier pin is lifted."""

    shard: int
    node: str
    pin: timedelta | None = None


@dataclass(frozen=True, slots=True)
class PauseRebalance:
    """Move shards only by a further order, or when their owner cannot serve."""


@dataclass(frozen=True, slots=True)
class ResumeRebalance:
    """Move shards for balance again."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Bring the shards into balance now, without waiting for membership to settle."""


Order: TypeAlias = DrainNode | UndrainNode | EvictNode | MoveShard | PauseRebalance | ResumeRebalance | Rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An order as it came in. With `dry_run` nothing is changed; with `expected_version` it is refused if the plan has
    another version by then."""

    order: Order
    dry_run: bool = False
    expected_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """What an order did, or would do: the plan in force then, and all `moves` that follow from the order. Of a
    rebalancing, `plan` makes only the first ones; the others follow. `before` and `after` are shards by node."""

    plan: Plan
    moves: tuple[Move, ...]
    before: Mapping[str, int]
    after: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Orders in force from now on, shards to be moved this once, whether for balance too, and the plan's reason."""

    orders: Orders
    reason: str
    moves: Mapping[int, str] = field(default_factory=dict)
    balance: bool = False


def decide(given: Given, view: View, shards: int, now: datetime) -> Decision:
    """What the order comes to; `now` is by the cluster's clock. Raises `OrderRefused`."""
    version = view.plan.version if view.plan is not None else 0
    if given.expected_version is not None and given.expected_version != version:
        raise PlanChanged(given.expected_version, version)
    orders = view.plan.orders if view.plan is not None else Orders()
    match given.order:
        case DrainNode(node=node, force=force):
            return _drain(node, force, orders, view)
        case EvictNode():
            return _evict(given.order, orders, view)
        case UndrainNode(node=node):
            return _undrain(node, orders, view)
        case MoveShard():
            return _move(given.order, orders, view, shards, now)
        case PauseRebalance():
            return Decision(orders=replace(orders, paused=True), reason="pause")
        case ResumeRebalance():
            return Decision(orders=replace(orders, paused=False), reason="resume")
        case Rebalance():
            if orders.paused and not given.dry_run:
                raise ClusterPaused
            return Decision(orders=orders, reason="rebalance", balance=True)
        case _:
            assert_never(given.order)


def _drain(node: str, force: bool, orders: Orders, view: View) -> Decision:
    _check_known(node, [*view.members, *orders.drained], view)
    after = replace(orders, drained=orders.drained | {node})
    _check_rest(node, force, orders, after, view)
    return Decision(orders=after, reason=f"drain {node}")


def _evict(order: EvictNode, orders: Orders, view: View) -> Decision:
    node, here = order.node, view.members.get(order.node)
    if here is None or node not in view.sessions:
        if not order.incarnation:
            raise UnknownNode(node, sorted(view.members))
        eviction = Eviction(incarnation=order.incarnation, session=0)
    elif order.incarnation not in (0, here.incarnation):
        raise ProcessGone(node, order.incarnation)
    else:
        eviction = Eviction(incarnation=here.incarnation, session=view.sessions[node].number)
    known = orders.evicted.get(node)
    if known is None or known.incarnation != eviction.incarnation:
        # Once only: the process may come back in a later session, which is left to it.
        orders_after = replace(orders, evicted={**orders.evicted, node: eviction})
        _check_rest(node, order.force, orders, orders_after, view)
        orders = orders_after
    return Decision(orders=orders, reason=f"evict {node}")


def _undrain(node: str, orders: Orders, view: View) -> Decision:
    _check_known(node, [*view.members, *orders.drained, *orders.evicted], view)
    evicted = {name: eviction for name, eviction in orders.evicted.items() if name != node}
    return Decision(orders=replace(orders, drained=orders.drained - {node}, evicted=evicted), reason=f"undrain {node}")


def _move(order: MoveShard, orders: Orders, view: View, shards: int, now: datetime) -> Decision:
    if not 0 <= order.shard < shards:
        raise UnknownShard(order.shard, shards)
    _check_known(order.node, view.members, view)
    fit = can_serve(view.members.values(), orders)
    if order.node not in fit:
        raise NodeUnfit(order.node, fit)
    pins = {shard: pin for shard, pin in orders.pins.items() if shard != order.shard}
    if order.pin is not None:
        pins[order.shard] = Pin(node=order.node, until=now + order.pin)
    return Decision(
        orders=replace(orders, pins=dict(sorted(pins.items()))),
        reason=f"move {order.shard} to {order.node}",
        moves={order.shard: order.node},
    )


def _check_known(node: str, known: Collection[str], view: View) -> None:
    if node not in known:
        raise UnknownNode(node, sorted(view.members))


def _check_rest(node: str, force: bool, before: Orders, after: Orders, view: View) -> None:
    members = view.members.values()
    if not force and can_serve(members, before) and not can_serve(members, after):
        raise LastNode(node)
    if len(after.drained) + len(after.evicted) > MAX_NAMED_NODES:
        raise TooManyOrders(MAX_NAMED_NODES)
