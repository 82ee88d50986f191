"""The life of one shard on one node: a pure state machine. `transition` is the only way from a state to the next.

           Wanted              Leased                  FencedIn              Unwanted: stop gracefully
    Idle ──────────▶ Leasing ──────────▶ Fencing ─────────────────▶ Active ─────────────────────────────┐
     ▲    acquire     │  ▲    fence in    │  │       start           │ EpochGone, StartFailed, LeaseGone, │
     │                │  └── (Wanted: once more)                     │ SessionOver: stop at once          ▼
     │◀── Unwanted ───┘                   │                          └───────────────────────────▶ Stopping
     │                                    │ Unwanted, FenceRefused                                    │
     │◀──────────── Released ───── Releasing ◀──────────────── Stopped, if a lease is left ───────────┤
     │                                release                                                         │
     └◀──────────────────────────────────────────────── Stopped, if no lease is left ─────────────────┘

`SessionOver` ends every lease: Leasing, Fencing and Releasing become Idle, Active and Stopping become Stopping without
a lease. `LeaseGone` does the same for one shard.

Invariants, checked for all pairs of state and event by the tests:

1. `Start` is asked for exactly on entering Active, and Active is entered only through a fence (`FencedIn`).
2. Active is left only with a `Stop`; between a `Start` and the next one lies a `Stopped`.
3. `Release` is never asked for while the shard may still be served here (Active, Stopping).
4. A graceful stop may become an immediate one, never the other way round.
5. Answers to what is no longer wanted (an old lease's `FencedIn`, a `Stopped` in Idle) change nothing.
6. `Wanted` and `Unwanted` are levels, repeated on each round: in Leasing, Fencing and Releasing they repeat the pending
   request, so nothing that failed or got lost is forgotten. Once the level holds, they change nothing.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from shard_manager.coordinator import Lease


@dataclass(frozen=True, slots=True)
class Idle:
    """Not ours: no lease, nothing running."""


@dataclass(frozen=True, slots=True)
class Leasing:
    """The plan gives us the shard; its lease is not ours yet, perhaps still another's."""


@dataclass(frozen=True, slots=True)
class Fencing:
    """Leased; PostgreSQL has not accepted the lease as fence yet."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Active:
    """Ours: fenced in at `epoch`, being served."""

    lease: Lease
    epoch: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The host winds the shard up. `lease` is what is to be released then, None if it is gone already."""

    lease: Lease | None
    graceful: bool


@dataclass(frozen=True, slots=True)
class Releasing:
    """Nothing runs; the lease is being given up."""

    lease: Lease


State: TypeAlias = Idle | Leasing | Fencing | Active | Stopping | Releasing


@dataclass(frozen=True, slots=True)
class Wanted:
    """Level: this node should serve the shard."""


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Level: this node should not serve the shard."""


@dataclass(frozen=True, slots=True)
class Leased:
    """Our session holds `lease`."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """Our session lives but no longer holds this shard."""


@dataclass(frozen=True, slots=True)
class FencedIn:
    """PostgreSQL accepted `lease`: the shard's epoch is now `epoch`."""

    lease: Lease
    epoch: int


@dataclass(frozen=True, slots=True)
class FenceRefused:
    """PostgreSQL knows a lease that is as new as `lease` or newer; only a new lease can help."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class EpochGone:
    """A statement of this node found the shard's epoch changed: somebody has fenced in after us."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The host could not start the shard."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The host will claim nothing of the shard any more."""


@dataclass(frozen=True, slots=True)
class Released:
    """The coordinator has taken `lease` back."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class SessionOver:
    """The coordinator session has ended, and all its leases with it."""


Event: TypeAlias = (
    Wanted | Unwanted | Leased | LeaseGone | FencedIn | FenceRefused | EpochGone | StartFailed | Stopped | Released
    | SessionOver
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask the coordinator for the lease."""


@dataclass(frozen=True, slots=True)
class FenceIn:
    """Ask PostgreSQL to accept `lease` as the shard's fence."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Start:
    """Let the host serve the shard at `epoch`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Let the host stop serving; `graceful` lets it finish what is in flight."""

    graceful: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Give `lease` back to the coordinator."""

    lease: Lease


Action: TypeAlias = Acquire | FenceIn | Start | Stop | Release
Step: TypeAlias = tuple[State, tuple[Action, ...]]


def transition(state: State, event: Event) -> Step:
    """The state after `event` and what is to be done now. Total: every pair has an answer, see the module docstring."""
    match state:
        case Idle():
            return _from_idle(state, event)
        case Leasing():
            return _from_leasing(state, event)
        case Fencing():
            return _from_fencing(state, event)
        case Active():
            return _from_active(state, event)
        case Stopping():
            return _from_stopping(state, event)
        case Releasing():
            return _from_releasing(state, event)
        case _:
            assert_never(state)


def _from_idle(state: Idle, event: Event) -> Step:
    match event:
        case Wanted():
            return Leasing(), (Acquire(),)
        case Leased(lease):
            # An acquire whose answer was lost, for a shard that we gave up on: nobody can have it while we keep it.
            return _release(lease)
        case _:
            return state, ()


def _from_leasing(state: Leasing, event: Event) -> Step:
    match event:
        case Wanted():
            return state, (Acquire(),)
        case Unwanted() | SessionOver():
            return Idle(), ()
        case Leased(lease):
            return Fencing(lease), (FenceIn(lease),)
        case _:
            return state, ()


def _from_fencing(state: Fencing, event: Event) -> Step:
    match event:
        case Wanted():
            return state, (FenceIn(state.lease),)
        case Unwanted():
            return _release(state.lease)
        case FenceRefused(lease) if lease == state.lease:
            return _release(lease)
        case FencedIn(lease, epoch) if lease == state.lease:
            return Active(lease, epoch), (Start(epoch),)
        case Leased(lease) if lease > state.lease:
            return Fencing(lease), (FenceIn(lease),)
        case LeaseGone() | SessionOver():
            return Idle(), ()
        case _:
            return state, ()


def _from_active(state: Active, event: Event) -> Step:
    match event:
        case Unwanted():
            return Stopping(state.lease, graceful=True), (Stop(graceful=True),)
        case EpochGone() | StartFailed():
            return Stopping(state.lease, graceful=False), (Stop(graceful=False),)
        case LeaseGone() | SessionOver():
            return Stopping(None, graceful=False), (Stop(graceful=False),)
        case Leased(lease) if lease > state.lease:
            # The epoch rests on the fence, not on the lease; the newer lease is what there will be to release.
            return Active(lease, state.epoch), ()
        case _:
            return state, ()


def _from_stopping(state: Stopping, event: Event) -> Step:
    match event:
        case Stopped():
            return (Idle(), ()) if state.lease is None else _release(state.lease)
        case LeaseGone() | SessionOver():
            return Stopping(None, graceful=False), (Stop(graceful=False),) if state.graceful else ()
        case EpochGone() if state.graceful:
            return Stopping(state.lease, graceful=False), (Stop(graceful=False),)
        case StartFailed() if state.graceful:
            return Stopping(state.lease, graceful=False), (Stop(graceful=False),)
        case Leased(lease) if state.lease is None or lease > state.lease:
            return Stopping(lease, state.graceful), ()
        case _:
            return state, ()


def _from_releasing(state: Releasing, event: Event) -> Step:
    match event:
        case Wanted() | Unwanted():
            return _release(state.lease)
        case Leased(lease) if lease > state.lease:
            return _release(lease)
        case Released(lease) if lease == state.lease:
            return Idle(), ()
        case LeaseGone() | SessionOver():
            return Idle(), ()
        case _:
            return state, ()


def _release(lease: Lease) -> Step:
    return Releasing(lease), (Release(lease),)
