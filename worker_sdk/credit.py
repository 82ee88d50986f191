"""How a worker's slots are split among nodes, so that together they never use more than there are.

A node may have as many attempts of a handler outstanding as its credit says. A slot moves from one node to another in
two steps: the old node is told its smaller credit, and only when it has acknowledged that, the new one is told its
larger one. Nothing here does I/O or reads a clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def split(limit: int, used: Mapping[str, int], demand: Mapping[str, int], turn: int) -> dict[str, int]:
    """Return how many of `limit` slots each node in `used` should have.

    Each node keeps what it uses. What is free goes first to nodes where jobs wait (`demand`), in equal shares; single
    slots that cannot be shared go round with `turn`. The rest is spread evenly, so that an idle node can start a job
    at once.
    """
    nodes = sorted(used)
    shares = dict(used)
    free = limit - sum(shares.values())
    if not nodes or free <= 0:
        return shares
    first = turn % len(nodes)
    wanting = {node: demand[node] for node in [*nodes[first:], *nodes[:first]] if demand.get(node, 0) > 0}
    while wanting and free > 0:
        even = free // len(wanting)
        for node, want in list(wanting.items()):
            given = min(want, max(even, 1), free)
            shares[node] += given
            free -= given
            wanting[node] -= given
            if wanting[node] == 0:
                del wanting[node]
    for position, node in enumerate(nodes):
        shares[node] += free // len(nodes) + (position < free % len(nodes))
    return shares


@dataclass(slots=True)
class _Account:
    """Credit of one node."""

    sequence: int = 0
    granted: dict[str, int] = field(default_factory=dict)
    """By handler: what the node was told last."""
    acked: dict[str, int] = field(default_factory=dict)
    """By handler: what the node has acknowledged last."""
    unacked: list[tuple[int, Mapping[str, int]]] = field(default_factory=list)
    """Told, and not acknowledged yet."""
    demand: Mapping[str, int] = field(default_factory=dict)
    draining: bool = False

    def bound(self, handler: str) -> int:
        """Return the most that the node may use now: it may not have read the latest credits yet."""
        return max(self.acked.get(handler, 0), *(credits.get(handler, 0) for _, credits in self.unacked), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A credit to be sent to a node."""

    node: str
    sequence: int
    slots: Mapping[str, int]


class CreditBook:
    """Knows the credit of every node with a live session, and what should change."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        """Split `limits`: by handler, the attempts that may run at a time in the worker."""
        self._limits = dict(limits)
        self._accounts: dict[str, _Account] = {}
        self._closed = False

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes with an account."""
        return list(self._accounts)

    def join(self, node: str) -> None:
        """Open an account without credit, for a new session."""
        self._accounts[node] = _Account()

    def leave(self, node: str) -> None:
        """Close the account of a session that has ended: nothing can be handed out through it any more."""
        self._accounts.pop(node, None)

    def set_demand(self, node: str, demand: Mapping[str, int]) -> None:
        """Note how many jobs wait on a node, by handler."""
        if node in self._accounts:
            self._accounts[node].demand = dict(demand)

    def acknowledge(self, node: str, sequence: int) -> None:
        """Note that a node has taken in a credit, and thereby all earlier ones."""
        account = self._accounts.get(node)
        if account is None:
            return
        for number, credits in account.unacked:
            if number <= sequence:
                account.acked.update(credits)
        account.unacked = [item for item in account.unacked if item[0] > sequence]

    def drain(self, node: str) -> None:
        """Take all credit from a node that is about to stop."""
        if node in self._accounts:
            self._accounts[node].draining = True

    def close(self) -> None:
        """Take all credit from all nodes: the worker stops."""
        self._closed = True

    def grants(self, used: Mapping[tuple[str, str], int], lingering: Mapping[str, int], turn: int) -> list[Grant]:
        """Return the credits to be sent now, and take them for sent.

        `used` counts running attempts by (node, handler), also of nodes without a session; `lingering` by handler those
        which no node counts but which still occupy a slot.
        """
        changes: dict[str, dict[str, int]] = {}
        for handler, limit in self._limits.items():
            occupied = lingering.get(handler, 0) + sum(
                count for (node, name), count in used.items() if name == handler and node not in self._accounts
            )
            for node, slots in self._changes(handler, max(limit - occupied, 0), used, turn).items():
                changes.setdefault(node, {})[handler] = slots
        return [self._grant(node, slots) for node, slots in changes.items()]

    def _changes(self, handler: str, limit: int, used: Mapping[tuple[str, str], int], turn: int) -> dict[str, int]:
        open_accounts = {
            node: account for node, account in self._accounts.items() if not (self._closed or account.draining)
        }
        targets = split(
            limit,
            {node: used.get((node, handler), 0) for node in open_accounts},
            {node: account.demand.get(handler, 0) for node, account in open_accounts.items()},
            turn,
        )
        possible = {
            node: max(account.bound(handler), used.get((node, handler), 0)) for node, account in self._accounts.items()
        }
        headroom = limit - sum(possible.values())
        changes: dict[str, int] = {}
        for node, account in self._accounts.items():
            granted, target = account.granted.get(handler), targets.get(node, 0)
            if target > possible[node]:
                growth = max(0, min(target - possible[node], headroom))
                headroom -= growth
                target = possible[node] + growth
            if target != granted:
                changes[node] = target
        return changes

    def _grant(self, node: str, slots: Mapping[str, int]) -> Grant:
        account = self._accounts[node]
        account.sequence += 1
        account.granted.update(slots)
        account.unacked.append((account.sequence, slots))
        return Grant(node=node, sequence=account.sequence, slots=slots)
