"""All shards of one node: their lease states, what they ask for, and who is told of what changes."""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from shard_manager.coordinator import Lease
from shard_manager.events import Cause, FenceRefusal, ManagerEvent, ShardAcquired, ShardLost, ShardReleased
from shard_manager.lease import (
    Acquire,
    Action,
    Active,
    EpochGone,
    Event,
    FencedIn,
    FenceIn,
    FenceRefused,
    Idle,
    Leased,
    LeaseGone,
    Leasing,
    Release,
    Released,
    SessionOver,
    Start,
    StartFailed,
    State,
    Stop,
    Stopped,
    Stopping,
    Unwanted,
    Wanted,
    transition,
)

logger = logging.getLogger(__name__)

FORGIVEN_AFTER_S: Final = 30.0

_Asked = TypeVar("_Asked", Acquire, FenceIn, Release)


class _Setbacks:
    """How soon a shard that went wrong may be wanted again: the first time at once, then ever later."""

    def __init__(self, initial_s: float, maximum_s: float) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._last: dict[int, tuple[int, float]] = {}
        self.until_s: dict[int, float] = {}

    def add(self, shard: int, now_s: float) -> None:
        count, last_s = self._last.get(shard, (0, 0.0))
        count = count + 1 if now_s - last_s < FORGIVEN_AFTER_S else 1
        self._last[shard] = (count, now_s)
        if count > 1:
            self.until_s[shard] = now_s + min(self._initial_s * 2.0 ** min(count - 2, 16), self._maximum_s)

    def waiting(self, now_s: float) -> frozenset[int]:
        self.until_s = {shard: until_s for shard, until_s in self.until_s.items() if until_s > now_s}
        return frozenset(self.until_s)


class ShardTable:
    """Applies events to shards. Starts and stops are passed to `start` and `stop` at once; what the coordinator or
    PostgreSQL is asked for is collected until `take_*`, so that many shards go in one call."""

    def __init__(
        self,
        node: str,
        shards: int,
        *,
        start: Callable[[int, int], None],
        stop: Callable[[int, bool], None],
        emit: Callable[[ManagerEvent], None],
        clock: Callable[[], float],
        setback_initial_s: float,
        setback_max_s: float,
    ) -> None:
        self._node = node
        self._start = start
        self._stop = stop
        self._emit = emit
        self._clock = clock
        self._setbacks = _Setbacks(setback_initial_s, setback_max_s)
        self._asked: dict[int, Acquire | FenceIn | Release] = {}
        self.states: dict[int, State] = {shard: Idle() for shard in range(shards)}

    @property
    def owned(self) -> dict[int, int]:
        """Shard to epoch of all shards that are fenced in and not being stopped."""
        return {shard: state.epoch for shard, state in self.states.items() if isinstance(state, Active)}

    @property
    def is_idle(self) -> bool:
        """Nothing is held, run or asked for."""
        return all(isinstance(state, Idle) for state in self.states.values())

    @property
    def is_serving(self) -> bool:
        """Some shard may still be claimed from here."""
        return any(isinstance(state, Active | Stopping) for state in self.states.values())

    @property
    def waits_for_lease(self) -> bool:
        """Some shard is to be ours and its lease is not."""
        return any(isinstance(state, Leasing) for state in self.states.values())

    def next_retry_s(self) -> float | None:
        """When the first shard held back after a failure may be wanted again, by the clock; None: none is."""
        return min(self._setbacks.until_s.values(), default=None)

    def reconcile(self, wanted: Collection[int], held: Mapping[int, Lease], unwanted_cause: Cause) -> None:
        """Bring every shard in line with what the coordinator says is held and the plan wants."""
        waiting = self._setbacks.waiting(self._clock())
        for shard, state in self.states.items():
            lease = held.get(shard)
            if isinstance(state, Active) and state.lease is lease and shard in wanted and shard not in waiting:
                continue  # nothing to do, as for most of perhaps a thousand shards once a second
            known = None if isinstance(state, Idle | Leasing) else state.lease
            if lease is not None and lease != known:
                self.apply(shard, Leased(lease), Cause.PLAN)
            elif lease is None and known is not None:
                self.apply(shard, LeaseGone(), Cause.LEASE_GONE)
            if shard in wanted and shard not in waiting:
                self.apply(shard, Wanted(), Cause.PLAN)
            else:
                self.apply(shard, Unwanted(), unwanted_cause)

    def ask_again(self) -> None:
        """Ask anew for the leases that are waited for; by the next reading it shows whether they are still wanted."""
        for shard, state in self.states.items():
            if isinstance(state, Leasing):
                self.apply(shard, Wanted(), Cause.PLAN)

    def unwant_all(self, cause: Cause) -> None:
        """Wind everything up gracefully."""
        for shard in self.states:
            self.apply(shard, Unwanted(), cause)

    def end_session(self, cause: Cause) -> None:
        """Stop everything at once; no lease is left."""
        for shard in self.states:
            self.apply(shard, SessionOver(), cause)

    def lost_epoch(self, shard: int, epoch: int | None) -> None:
        """A statement found `epoch` (None: the present one) of `shard` gone. A late report of an older one is void."""
        state = self.states.get(shard)
        if isinstance(state, Active) and epoch in (None, state.epoch):
            self._setbacks.add(shard, self._clock())
            self.apply(shard, EpochGone(), Cause.FENCED)

    def started(self, shard: int, epoch: int) -> None:
        """The host serves the shard."""
        state = self.states[shard]
        if isinstance(state, Active) and state.epoch == epoch:
            logger.info(
                "shard acquired",
                extra={"node": self._node, "shard": shard, "epoch": epoch, "cause": Cause.PLAN.value,
                       "generation": state.lease.generation, "lease_token": state.lease.token},
            )  # fmt: skip
            self._emit(ShardAcquired(shard=shard, epoch=epoch, cause=Cause.PLAN))

    def start_failed(self, shard: int) -> None:
        """The host could not serve the shard."""
        if isinstance(self.states[shard], Active):
            self._setbacks.add(shard, self._clock())
        self.apply(shard, StartFailed(), Cause.START_FAILED)

    def stopped(self, shard: int) -> None:
        """The host claims nothing of the shard any more."""
        self.apply(shard, Stopped(), Cause.PLAN)

    def leased(self, leases: Collection[Lease]) -> None:
        """The coordinator granted these leases."""
        for lease in leases:
            if lease.shard in self.states:
                self.apply(lease.shard, Leased(lease), Cause.PLAN)

    def fenced_in(self, leases: Collection[Lease], epochs: Mapping[int, int]) -> None:
        """PostgreSQL's answer to a fence-in of `leases`: shard to epoch, refused ones missing."""
        for lease in leases:
            epoch = epochs.get(lease.shard)
            if epoch is not None:
                self.apply(lease.shard, FencedIn(lease, epoch), Cause.PLAN)
                continue
            logger.info(
                "fence refused",
                extra={"node": self._node, "shard": lease.shard, "cause": Cause.FENCE_REFUSED.value,
                       "generation": lease.generation, "lease_token": lease.token},
            )  # fmt: skip
            self._emit(FenceRefusal(shard=lease.shard, generation=lease.generation, token=lease.token))
            self._setbacks.add(lease.shard, self._clock())
            self.apply(lease.shard, FenceRefused(lease), Cause.FENCE_REFUSED)

    def released(self, leases: Collection[Lease]) -> None:
        """The coordinator took these leases back."""
        for lease in leases:
            self.apply(lease.shard, Released(lease), Cause.PLAN)
            self._emit(ShardReleased(shard=lease.shard))

    def take_acquires(self) -> list[int]:
        """Shards whose lease is asked for since the last call."""
        return [shard for shard, _ in self._take(Acquire)]

    def take_fences(self) -> list[Lease]:
        """Leases that are to become fences."""
        return [asked.lease for _, asked in self._take(FenceIn)]

    def take_releases(self) -> list[Lease]:
        """Leases that are to be given back."""
        return [asked.lease for _, asked in self._take(Release)]

    def apply(self, shard: int, event: Event, cause: Cause) -> None:
        """Take one step and pass on what it asks for. `cause` is what a loss of the shard is put down to."""
        before = self.states[shard]
        after, actions = transition(before, event)
        if after is not before:
            self.states[shard] = after
            self._asked.pop(shard, None)
        if isinstance(before, Active) and isinstance(after, Stopping):
            logger.info(
                "shard lost",
                extra={"node": self._node, "shard": shard, "epoch": before.epoch, "cause": cause.value},
            )
            self._emit(ShardLost(shard=shard, epoch=before.epoch, cause=cause))
        for action in actions:
            self._pass_on(shard, action)

    def _pass_on(self, shard: int, action: Action) -> None:
        match action:
            case Start(epoch):
                self._start(shard, epoch)
            case Stop(graceful):
                self._stop(shard, graceful)
            case _:
                self._asked[shard] = action

    def _take(self, kind: type[_Asked]) -> list[tuple[int, _Asked]]:
        taken = [(shard, asked) for shard, asked in self._asked.items() if isinstance(asked, kind)]
        for shard, _ in taken:
            del self._asked[shard]
        return taken
