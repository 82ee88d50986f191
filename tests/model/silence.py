"""Model: the lease of a living worker, an owner that might take it for dead, outages and clock jumps of the database.

Time goes in ticks; a lease lasts two. Either another node hears the worker, and renews its lease within a tick whenever
the database answers, or the owner itself is the only one that hears it. The owner judges by leases.

| action | stands for |
|---|---|
| tick, database away, database back | time and outages |
| jump | the database's clock jumps ahead by more than a lease |
| other node renews | `Liveness.renew` of the node that hears the worker: `workers.RENEW` |
| owner renews | `Liveness.renew` of the owner, with `_resumed_at`, `stalled` and what `DatabaseClock` sees of a jump |
| falls silent, is heard again | the worker's messages stop for a while: `SlotBook.heard` |
| reap | `Reaper.reap_once` with `Liveness.leases_judged_until`: `workers.DEAD` |
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Removed

LEASE = 2


class State(NamedTuple):
    """What the database holds, and what the owner knows."""

    lease_left: int = LEASE  # ticks until the lease is over; 0: it is
    renewed: bool = True  # in this tick, by the other node
    away: bool = False
    worked_for: int = LEASE  # at the owner's latest renewal: ticks for which they had worked; -1: they do not
    since: int = 0  # ticks since then
    over_at_renewal: bool = False  # whether the lease was over then, and has not been renewed since
    jump_unseen: bool = False
    heard: bool = True
    outages: int = 1
    jumps: int = 1
    silences: int = 1


class Silence:
    """The model; see the module. No reaping of a worker that is heard is right."""

    def __init__(self, removed: Removed = (), *, by_owner: bool = False) -> None:
        """`by_owner`: the owner is the node that hears the worker."""
        self._removed = removed
        self._by_owner = by_owner

    def initial(self) -> State:
        return State()

    def wrong(self, state: State) -> str:
        return ""

    def is_good(self, state: State) -> bool:
        """The worker is heard, its lease runs, and judging by leases is allowed."""
        return state.heard and state.lease_left > 0 and self._may_judge(state)

    def steps(self, state: State) -> Iterator[Step[State]]:
        if state.away:
            yield Step(("tick",), _tick(state))
            yield Step(("database back",), state._replace(away=False, renewed=False))
            return
        if state.renewed or self._by_owner:
            yield Step(("tick",), _tick(state))
        if not (state.renewed or self._by_owner):
            yield Step(("other node renews",), _renewed(state))
        yield Step(("owner renews",), self._owner_renews(state))
        if state.outages:
            yield Step(("database away",), state._replace(away=True, outages=0))
        if state.jumps:
            yield Step(("jump",), state._replace(lease_left=0, jump_unseen=True, jumps=0, renewed=False))
        if self._by_owner:
            yield from self._hearing(state)
        own_ears = self._by_owner and state.heard and Protection.OWN_EARS not in self._removed
        if self._may_judge(state) and self._is_over(state) and not own_ears:
            # A worker that has been silent for its whole lease may be taken for dead.
            yield Step(("reap",), state, "a worker that lives is taken for dead" if state.heard else "")

    def _hearing(self, state: State) -> Iterator[Step[State]]:
        if not state.heard:
            yield Step(("is heard again",), state._replace(heard=True))
        elif state.silences:
            yield Step(("falls silent",), state._replace(heard=False, silences=0))

    def _owner_renews(self, state: State) -> State:
        worked = state.worked_for + state.since if state.worked_for >= 0 and state.since < LEASE else 0
        if state.jump_unseen:
            worked = 0
        state = state._replace(worked_for=min(worked, LEASE), since=0, jump_unseen=False)
        if self._by_owner and state.heard:
            return _renewed(state)
        return state._replace(over_at_renewal=state.lease_left == 0)

    def _may_judge(self, state: State) -> bool:
        if Protection.FULL_LEASE_AFTER_OUTAGE in self._removed:
            return not state.away
        return state.worked_for >= LEASE

    def _is_over(self, state: State) -> bool:
        """Whether the lease counts as over: it is, and was so when the owner's renewal last worked."""
        return state.lease_left == 0 and (state.over_at_renewal or Protection.AS_OF_RENEWAL in self._removed)


def _tick(state: State) -> State:
    worked = -1 if state.away else state.worked_for
    return state._replace(
        lease_left=max(state.lease_left - 1, 0), renewed=False, worked_for=worked, since=min(state.since + 1, LEASE)
    )


def _renewed(state: State) -> State:
    return state._replace(renewed=True, lease_left=LEASE, over_at_renewal=False)
