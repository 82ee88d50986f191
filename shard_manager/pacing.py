"""When the leader may move what: pure, from what it has seen of the membership and when.

One node that vanishes alone is dead: its shards are given out at once. Several that vanish together, or anybody missing
just after the leader's own session began, look more like a coordinator that was away and is coming back, and they get
`loss_guard` to return before their shards move. Balance is never urgent: it waits until membership has been still for
`settle`, and so long again after each round of moves. When people ask for it, only `wave` lies between the rounds.
In the first `settle` after the very first plan, whoever comes is given a fair share at once: the nodes of a new cluster
start together, and there is nothing yet that a move could disturb.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from shard_manager.coordinator import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`hold`: absent nodes whose shards stay theirs for now. `voluntary`: whether moves for balance may be made;
    `unbounded`: as many as it takes, for the cluster is new."""

    hold: frozenset[str]
    voluntary: bool
    unbounded: bool = False


class Pacing:
    """The leader's memory of one session. Times are seconds of any monotonic clock, the same for all calls."""

    def __init__(self, *, settle: timedelta, loss_guard: timedelta, wave: timedelta, started_s: float) -> None:
        self._settle_s = settle.total_seconds()
        self._wave_s = wave.total_seconds()
        self._next_wave_s: float | None = None
        self._guard_s = loss_guard.total_seconds()
        self._trusted_from_s = started_s + self._guard_s
        self._present: frozenset[str] = frozenset()
        self._missing_since_s: dict[str, float] = {}
        self._hold_until_s: dict[str, float] = {}
        self._still_since_s = started_s
        self._new_until_s = started_s

    def pace(self, members: Collection[str], plan: Plan | None, now_s: float) -> Pace:
        """Take note of who is here now and say what may move."""
        present = frozenset(members)
        if present != self._present:
            self._present = present
            self._still_since_s = now_s
        if plan is None:
            self._new_until_s = now_s + self._settle_s
        is_new = now_s < self._new_until_s
        owners = frozenset(plan.owners.values()) if plan is not None else frozenset()
        missing = owners - present
        self._missing_since_s = {node: self._missing_since_s.get(node, now_s) for node in missing}
        self._hold_until_s = {node: self._hold_until(node) for node in missing}
        return Pace(
            hold=frozenset(node for node, until_s in self._hold_until_s.items() if until_s > now_s),
            voluntary=is_new or self._still_since_s + self._settle_s <= now_s or self._next_wave_is_due(now_s),
            unbounded=is_new,
        )

    def _hold_until(self, node: str) -> float:
        since_s = self._missing_since_s[node]
        near = [other for other, other_s in self._missing_since_s.items() if abs(other_s - since_s) < self._guard_s]
        until_s = since_s + self._guard_s if len(near) > 1 else since_s
        return max(until_s, self._trusted_from_s, self._hold_until_s.get(node, until_s))

    def distrust(self, until_s: float) -> None:
        """Whoever is missing until then is not taken for dead yet."""
        self._trusted_from_s = max(self._trusted_from_s, until_s)

    def moved(self, now_s: float) -> None:
        """Shards were moved: let that settle before the next round for balance."""
        self._still_since_s = now_s
        if self._next_wave_s is not None:
            self._next_wave_s = now_s + self._wave_s

    def hurry(self, now_s: float) -> None:
        """Balance was asked for: until it is reached, do not wait for anything to settle."""
        self._next_wave_s = now_s + self._wave_s

    def balanced(self) -> None:
        """Nothing is left to be moved for balance."""
        self._next_wave_s = None

    def _next_wave_is_due(self, now_s: float) -> bool:
        return self._next_wave_s is not None and self._next_wave_s <= now_s
