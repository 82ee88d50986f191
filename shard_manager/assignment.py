"""The planner: who should serve which shard. Pure and deterministic; the leader alone calls it.

Guarantees, for `n` shards to place on the nodes that can serve:

- every shard gets an owner, if any node can serve at all;
- sticky: a shard moves only because its owner cannot serve, a pin says so, or balance demands it, and balance is
  reached with the fewest moves possible;
- balanced: without pins, each node ends with its fair share `n * weight / total weight`, rounded down or up (so equal
  nodes differ by at most one shard); a node with more pins than that keeps them, the others share the rest;
- orders are obeyed: drained and evicted nodes are given nothing, a pinned or moved shard lies where it was ordered to;
- idempotent: planning again on the result changes nothing (with `max_moves`, repeated planning gets there);
- shard weights (load) never upset that balance of counts. They decide which shard goes where, and swap shards between
  the hottest and the coldest node while the hottest is more than 10 % above the mean.

The rounding is the method of largest remainders, ties in favour of who already has more.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shard_manager.coordinator import MAX_SHARDS, Member, MemberState, Plan
from shard_manager.errors import InvalidSetting, ShardCountMismatch
from shard_manager.orders import Orders

_LOAD_UNITS: Final = 1000
_MAX_LOAD: Final = 1e12
_HOT_PERCENT: Final = 110


class MoveCause(StrEnum):
    """Why a shard changes its owner."""

    UNOWNED = "unowned"
    OWNER_GONE = "owner gone"
    DRAIN = "drain"
    EVICT = "evict"
    UNHEALTHY = "unhealthy"
    PIN = "pin"
    ORDER = "order"
    BALANCE = "balance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One shard changes its owner; `target` is None if no node can serve it."""

    shard: int
    source: str | None
    target: str | None
    cause: MoveCause


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The outcome of planning: `plan` is the previous plan itself if nothing has to change."""

    plan: Plan
    moves: tuple[Move, ...]
    changed: bool


def plan(
    members: Iterable[Member],
    previous: Plan | None,
    shards: int,
    *,
    weights: Mapping[int, float] | None = None,
    orders: Orders | None = None,
    moves: Mapping[int, str] | None = None,
    max_moves: int | None = None,
    hold: Collection[str] = (),
    leader: str = "",
    reason: str = "",
) -> Planned:
    """Give every one of `shards` shards an owner among `members`, moving as little as possible.

    `weights` is each shard's load relative to the others, default 1. `orders` default to those of `previous`. `moves`
    (shard to node) are obeyed this once, if the node can serve. `max_moves` bounds the moves made for balance alone,
    default unlimited; a pause makes it 0. The shards of nodes in `hold` stay with them even though they are not
    members. `leader` and `reason` are recorded in the plan, the latter before the causes of its moves.
    Raises `ShardCountMismatch`, `InvalidSetting`.
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise InvalidSetting("shards", shards, f"must be 1 to {MAX_SHARDS}")
    if previous is not None and previous.shards != shards:
        raise ShardCountMismatch(configured=shards, planned=previous.shards)
    if orders is None:
        orders = previous.orders if previous is not None else Orders()
    places = {shard: pin.node for shard, pin in orders.pins.items()} | dict(moves or {})
    for shard in places:
        if not 0 <= shard < shards:
            raise InvalidSetting("pins", shard, f"must be a shard from 0 to {shards - 1}")
    everyone = {member.node: member for member in members}
    serving = _serving(everyone.values(), orders)
    before = dict(previous.owners) if previous is not None else {}

    board = _Board(serving, _loads(weights or {}, shards))
    held: dict[int, str] = {}
    for shard, owner in before.items():
        if owner in serving:
            board.put(shard, owner)
        elif owner in hold and owner not in everyone and owner not in orders.drained and owner not in orders.evicted:
            held[shard] = owner
    for shard, node in places.items():
        if node in serving:
            held.pop(shard, None)
            board.pin(shard, node)
    if serving:
        unplaced = [shard for shard in range(shards) if shard not in board.owners and shard not in held]
        _level(board, unplaced, 0 if orders.paused else max_moves)

    owners = dict(sorted((board.owners | held).items()))
    cause_of = _Causes(orders, moves or {}, everyone, serving)
    made = tuple(
        Move(shard=shard, source=source, target=target, cause=cause_of(shard, source, target))
        for shard in range(shards)
        for source, target in [(before.get(shard), owners.get(shard))]
        if source != target
    )
    if previous is not None and not made and orders == previous.orders:
        return Planned(plan=previous, moves=(), changed=False)
    result = Plan(
        version=previous.version + 1 if previous is not None else 1,
        shards=shards,
        owners=owners,
        orders=orders,
        leader=leader,
        reason=": ".join(filter(None, [reason, _counted(made)])) or "orders",
    )
    return Planned(plan=result, moves=made, changed=True)


def can_serve(members: Iterable[Member], orders: Orders) -> Collection[str]:
    """Names of the nodes that shards are given to, in order."""
    return tuple(_serving(list(members), orders))


def _serving(members: Collection[Member], orders: Orders) -> dict[str, int]:
    """Node to weight of those that can be given shards: the `up` ones, or if there is none, the `unhealthy` ones.

    What makes every node unhealthy (PostgreSQL away) is not mended by taking their shards from all of them.
    """
    fit = [member for member in members if not orders.excludes(member.node, member.incarnation)]
    for state in (MemberState.UP, MemberState.UNHEALTHY):
        found = {member.node: member.weight for member in fit if member.state is state}
        if found:
            return dict(sorted(found.items()))
    return {}


def _loads(weights: Mapping[int, float], shards: int) -> list[int]:
    """Each shard's load as a whole number, so that sums are exact and planning is the same on every machine."""
    for shard, weight in weights.items():
        if not (math.isfinite(weight) and 0 <= weight <= _MAX_LOAD):
            raise InvalidSetting(f"weights[{shard}]", weight, "must be a number from 0 to 1e12")
    return [round(weights.get(shard, 1.0) * _LOAD_UNITS) for shard in range(shards)]


@dataclass(frozen=True, slots=True)
class _Causes:
    """Says why a shard moved."""

    orders: Orders
    moves: Mapping[int, str]
    everyone: Mapping[str, Member]
    serving: Mapping[str, int]

    def __call__(self, shard: int, source: str | None, target: str | None) -> MoveCause:
        if target is not None and self.moves.get(shard) == target:
            return MoveCause.ORDER
        pin = self.orders.pins.get(shard)
        if pin is not None and pin.node == target:
            return MoveCause.PIN
        if source is None:
            return MoveCause.UNOWNED
        return MoveCause.BALANCE if source in self.serving else self._unfit(source)

    def _unfit(self, source: str) -> MoveCause:
        member = self.everyone.get(source)
        eviction = self.orders.evicted.get(source)
        # An evicted process may be out of sight already, its session being ended.
        if eviction is not None and (member is None or member.incarnation == eviction.incarnation):
            return MoveCause.EVICT
        if member is None:
            return MoveCause.OWNER_GONE
        drained = source in self.orders.drained or member.state is MemberState.DRAINING
        return MoveCause.DRAIN if drained else MoveCause.UNHEALTHY


def _counted(moves: Collection[Move]) -> str:
    counts: dict[MoveCause, int] = {}
    for move in moves:
        counts[move.cause] = counts.get(move.cause, 0) + 1
    return ", ".join(f"{cause} {count}" for cause, count in sorted(counts.items()))


class _Board:
    """Shards on nodes while a plan is made. `heat` is load per node weight, scaled to whole numbers."""

    def __init__(self, nodes: Mapping[str, int], loads: list[int]) -> None:
        self.nodes = nodes
        self.loads = loads
        self.owners: dict[int, str] = {}
        self.pinned: set[int] = set()
        self.shards: dict[str, set[int]] = {node: set() for node in nodes}
        self._load = dict.fromkeys(nodes, 0)
        scale = math.lcm(*nodes.values()) if nodes else 1
        self.per_load = {node: scale // weight for node, weight in nodes.items()}

    def put(self, shard: int, node: str) -> None:
        source = self.owners.get(shard)
        if source is not None:
            self.shards[source].discard(shard)
            self._load[source] -= self.loads[shard]
        self.owners[shard] = node
        self.shards[node].add(shard)
        self._load[node] += self.loads[shard]

    def pin(self, shard: int, node: str) -> None:
        self.put(shard, node)
        self.pinned.add(shard)

    def heat(self, node: str, extra_load: int = 0) -> int:
        return (self._load[node] + extra_load) * self.per_load[node]

    def movable(self, node: str) -> list[int]:
        return sorted(self.shards[node] - self.pinned)

    def is_hot(self, node: str) -> bool:
        # heat > 1.1 x (total load / total weight), in whole numbers
        scale = self.per_load[node] * self.nodes[node]
        total_load, total_weight = sum(self._load.values()), sum(self.nodes.values())
        return self.heat(node) * total_weight * 100 > _HOT_PERCENT * scale * total_load


def _level(board: _Board, unplaced: list[int], max_moves: int | None) -> None:
    """Place the unplaced, then level counts, then loads; `max_moves` bounds the latter two together."""
    room = _room(board, len(board.owners) + len(unplaced))
    for shard in sorted(unplaced, key=lambda shard: (-board.loads[shard], shard)):
        target = _coolest(board, room)
        board.put(shard, target)
        room[target] -= 1
    budget = len(board.loads) * len(board.nodes) if max_moves is None else max_moves
    while budget > 0 and any(count < 0 for count in room.values()):
        source = min(room, key=lambda node: (room[node], -board.heat(node), node))
        target = _coolest(board, room)
        board.put(_best_to_move(board, source, target), target)
        room[source] += 1
        room[target] -= 1
        budget -= 1
    while max_moves is None or budget >= 2:
        if not _swap(board):
            return
        budget -= 2


def _coolest(board: _Board, room: Mapping[str, int]) -> str:
    return min((node for node in room if room[node] > 0), key=lambda node: (board.heat(node), -room[node], node))


def _best_to_move(board: _Board, source: str, target: str) -> int:
    """The shard that leaves the hotter of the two as cool as possible."""

    def hotter(shard: int) -> int:
        load = board.loads[shard]
        return max(board.heat(source, -load), board.heat(target, load))

    return min(board.movable(source), key=lambda shard: (hotter(shard), shard))


def _swap(board: _Board) -> bool:
    """Swap two shards between the hottest and the coldest node if that cools the pair; say whether it did."""
    hottest = max(board.nodes, key=lambda node: (board.heat(node), node))
    coldest = min(board.nodes, key=lambda node: (board.heat(node), node))
    if not board.is_hot(hottest):
        return False
    best: tuple[int, int, int] | None = None
    for given in board.movable(hottest):
        for taken in board.movable(coldest):
            load = board.loads[given] - board.loads[taken]
            if load <= 0:
                continue
            hotter = max(board.heat(hottest, -load), board.heat(coldest, load))
            if best is None or (hotter, given, taken) < best:
                best = (hotter, given, taken)
    if best is None or best[0] >= board.heat(hottest):
        return False
    _, given, taken = best
    board.put(given, coldest)
    board.put(taken, hottest)
    return True


def _room(board: _Board, total: int) -> dict[str, int]:
    """How many shards each node should still take (negative: give), if `total` shards lie on the board in the end."""
    pinned = {node: len(board.pinned & board.shards[node]) for node in board.nodes}
    open_nodes = dict(board.nodes)
    targets: dict[str, int] = {}
    while True:
        weight_sum = sum(open_nodes.values())
        # A node with more pins than its fair share keeps just them; the rest is shared anew among the others.
        full = [node for node, weight in open_nodes.items() if pinned[node] * weight_sum > total * weight]
        if not full:
            break
        for node in full:
            targets[node] = pinned[node]
            total -= pinned[node]
            del open_nodes[node]
    remainders: dict[str, int] = {}
    for node, weight in open_nodes.items():
        targets[node], remainders[node] = divmod(total * weight, weight_sum)
    left = total - sum(targets[node] for node in open_nodes)
    by_claim = sorted(
        (node for node in open_nodes if remainders[node]),
        key=lambda node: (len(board.shards[node]) <= targets[node], -remainders[node], node),
    )
    for node in by_claim[:left]:
        targets[node] += 1
    return {node: targets[node] - len(board.shards[node]) for node in board.nodes}
