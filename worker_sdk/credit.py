"""How a worker's slots are split among its streams, so that together they never use more than there are.

A node may have as many attempts of a handler outstanding on a stream as the stream's credit says. What came on one
stream counts there alone, as long as the stream lives, whoever owns the job's shard meanwhile: so both ends count the
same attempts. What came on a stream that is gone occupies its slots and counts nowhere. A slot moves from one stream to
another in two steps: the old one's node is told its smaller credit, and only when it has acknowledged that, the new
one's is told its larger one. Nothing here does I/O or reads a clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

_NOTHING: Mapping[str, int] = {}


def split(
    limit: int,
    used: Mapping[str, int],
    demand: Mapping[str, int],
    turn: int,
    keep: Mapping[str, int] = _NOTHING,
    modest: Collection[str] = (),
) -> dict[str, int]:
    """Return how many of `limit` slots each stream in `used` should have.

    Each stream keeps what it uses. What is free goes first to where jobs wait (`demand`), in equal shares; single slots
    that cannot be shared go round with `turn`. Of the rest, each stream keeps what it has (`keep`), for it will
    probably need it again; what then is left goes to those that have least, so that an idle node can start a job at
    once. `modest` streams get none of that: they ask when they need a slot.
    """
    streams = sorted(used)
    shares = dict(used)
    free = limit - sum(shares.values())
    if not streams or free <= 0:
        return shares
    first = turn % len(streams)
    wanting = {one: demand[one] for one in [*streams[first:], *streams[:first]] if demand.get(one, 0) > 0}
    while wanting and free > 0:
        even = free // len(wanting)
        for one, want in list(wanting.items()):
            given = min(want, max(even, 1), free)
            shares[one] += given
            free -= given
            wanting[one] -= given
            if wanting[one] == 0:
                del wanting[one]
    idle = dict.fromkeys(streams, 0)
    for one in streams:
        idle[one] = min(free, max(0, keep.get(one, 0) - shares[one]))
        free -= idle[one]
    greedy = {one: slots for one, slots in idle.items() if one not in modest}
    _level(greedy, free)
    return {one: shares[one] + greedy.get(one, idle[one]) for one in streams}


def _level(idle: dict[str, int], free: int) -> None:
    """Give out what is free so that those which have least get it."""
    lowest = sorted(idle, key=lambda one: (idle[one], one))
    for count in range(len(lowest), 0, -1):
        some = lowest[:count]
        each, odd = divmod(free + sum(idle[one] for one in some), count)
        if each >= idle[some[-1]]:
            for position, one in enumerate(some):
                idle[one] = each + (position < odd)
            return


@dataclass(slots=True)
class _Account:
    """Credit of one stream."""

    sequence: int = 0
    granted: dict[str, int] = field(default_factory=dict)
    """By handler: what the node was told last."""
    acked: dict[str, int] = field(default_factory=dict)
    """By handler: what the node has acknowledged last."""
    unacked: list[tuple[int, Mapping[str, int]]] = field(default_factory=list)
    """Told, and not acknowledged yet."""
    demand: dict[str, int] = field(default_factory=dict)
    draining: bool = False
    modest: bool = False

    def bound(self, handler: str) -> int:
        """Return the most that the node may use now: it may not have read the latest credits yet."""
        return max(self.acked.get(handler, 0), *(credits.get(handler, 0) for _, credits in self.unacked), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A credit to be sent on a stream."""

    stream: str
    sequence: int
    slots: Mapping[str, int]


class CreditBook:
    """Knows the credit of every stream, and what should change."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        """Split `limits`: by handler, the attempts that may run at a time in the worker."""
        self._limits = dict(limits)
        self._accounts: dict[str, _Account] = {}
        self._closed = False
        self.strained = False
        """Whether slots were occupied at the last look that no stream counts."""

    @property
    def streams(self) -> Sequence[str]:
        """Streams with an account."""
        return list(self._accounts)

    def join(self, stream: str, *, modest: bool = False) -> None:
        """Open an account without credit, for a new stream. No stream may have the name of an older one.

        A modest one gets slots only while it has demand.
        """
        self._accounts[stream] = _Account(modest=modest)

    def granted(self, stream: str, handler: str) -> int:
        """Return the credit that a stream was told last."""
        account = self._accounts.get(stream)
        return account.granted.get(handler, 0) if account is not None else 0

    def leave(self, stream: str) -> None:
        """Close the account of a stream that has ended: nothing can be handed out through it any more."""
        self._accounts.pop(stream, None)

    def set_demand(self, stream: str, demand: Mapping[str, int]) -> None:
        """Note how many jobs wait for a slot at a stream's node, by handler."""
        if stream in self._accounts:
            self._accounts[stream].demand = dict(demand)

    def served(self, stream: str, handler: str, jobs: int) -> None:
        """Note that so many jobs have come: they wait no more."""
        account = self._accounts.get(stream)
        if account is not None and (waiting := account.demand.get(handler, 0)):
            account.demand[handler] = max(0, waiting - jobs)

    def acknowledge(self, stream: str, sequence: int) -> None:
        """Note that a node has taken in a credit, and thereby all earlier ones."""
        account = self._accounts.get(stream)
        if account is None:
            return
        for number, credits in account.unacked:
            if number <= sequence:
                account.acked.update(credits)
        account.unacked = [item for item in account.unacked if item[0] > sequence]

    def drain(self, stream: str) -> None:
        """Take all credit from a stream whose node is about to stop, or has left the cluster."""
        if stream in self._accounts:
            self._accounts[stream].draining = True

    def resume(self, stream: str) -> None:
        """Give credit again to a stream whose node has come back to the cluster."""
        if stream in self._accounts:
            self._accounts[stream].draining = False

    def close(self) -> None:
        """Take all credit from all streams: the worker stops."""
        self._closed = True

    def grants(
        self, used: Mapping[tuple[str, str], int], lingering: Mapping[str, int], turn: int, *, spread: bool = True
    ) -> list[Grant]:
        """Return the credits to be sent now, and take them for sent.

        `used` counts running attempts by (stream, handler), also of streams that have ended; `lingering` by handler
        those which no node counts but which still occupy a slot. With `spread`, idle slots are spread evenly; without,
        they move only to where jobs wait.
        """
        changes: dict[str, dict[str, int]] = {}
        self.strained = False
        for handler, limit in self._limits.items():
            occupied = lingering.get(handler, 0) + sum(
                count for (stream, name), count in used.items() if name == handler and stream not in self._accounts
            )
            self.strained |= occupied > 0
            for stream, slots in self._changes(handler, max(limit - occupied, 0), used, turn, spread=spread).items():
                changes.setdefault(stream, {})[handler] = slots
        return [self._grant(stream, slots) for stream, slots in changes.items()]

    def _changes(
        self, handler: str, limit: int, used: Mapping[tuple[str, str], int], turn: int, *, spread: bool
    ) -> dict[str, int]:
        open_accounts = {
            stream: account for stream, account in self._accounts.items() if not (self._closed or account.draining)
        }
        possible = {
            stream: max(account.bound(handler), used.get((stream, handler), 0))
            for stream, account in self._accounts.items()
        }
        retiring = sum(used.get((stream, handler), 0) for stream in self._accounts if stream not in open_accounts)
        targets = split(
            max(limit - retiring, 0),
            {stream: used.get((stream, handler), 0) for stream in open_accounts},
            {stream: account.demand.get(handler, 0) for stream, account in open_accounts.items()},
            turn,
            _NOTHING if spread else {one: account.granted.get(handler, 0) for one, account in open_accounts.items()},
            [one for one, account in open_accounts.items() if account.modest],
        )
        headroom = limit - sum(possible.values())
        changes: dict[str, int] = {}
        for stream, account in self._accounts.items():
            granted, target = account.granted.get(handler), targets.get(stream, 0)
            if target > possible[stream]:
                growth = max(0, min(target - possible[stream], headroom))
                headroom -= growth
                target = possible[stream] + growth
            if target != granted:
                changes[stream] = target
        return changes

    def _grant(self, stream: str, slots: Mapping[str, int]) -> Grant:
        account = self._accounts[stream]
        account.sequence += 1
        account.granted.update(slots)
        account.unacked.append((account.sequence, slots))
        return Grant(stream=stream, sequence=account.sequence, slots=slots)
