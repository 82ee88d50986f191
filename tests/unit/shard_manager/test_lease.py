"""Walks every pair of state and event of the lease state machine."""

import itertools
from collections import deque
from typing import get_args

import pytest

from shard_manager import lease as machine
from shard_manager.coordinator import Lease
from shard_manager.lease import (
    Acquire,
    Active,
    EpochGone,
    Event,
    FencedIn,
    FenceIn,
    FenceRefused,
    Fencing,
    Idle,
    Leased,
    LeaseGone,
    Leasing,
    Release,
    Released,
    Releasing,
    SessionOver,
    Start,
    StartFailed,
    State,
    Step,
    Stop,
    Stopped,
    Stopping,
    Unwanted,
    Wanted,
    transition,
)

OLD = Lease(shard=7, generation=1, token=10)
NOW = Lease(shard=7, generation=1, token=20)
NEW = Lease(shard=7, generation=2, token=5)

STATES: dict[str, State] = {
    "idle": Idle(),
    "leasing": Leasing(),
    "fencing": Fencing(NOW),
    "active": Active(NOW, 3),
    "stopping": Stopping(NOW, graceful=True),
    "halting": Stopping(NOW, graceful=False),
    "stopping without lease": Stopping(None, graceful=False),
    "releasing": Releasing(NOW),
}
EVENTS: dict[str, Event] = {
    "wanted": Wanted(),
    "unwanted": Unwanted(),
    "leased the same": Leased(NOW),
    "leased anew": Leased(NEW),
    "leased an older one": Leased(OLD),
    "lease gone": LeaseGone(),
    "fenced in": FencedIn(NOW, 3),
    "fenced in by an old lease": FencedIn(OLD, 2),
    "refused": FenceRefused(NOW),
    "old lease refused": FenceRefused(OLD),
    "epoch gone": EpochGone(),
    "start failed": StartFailed(),
    "stopped": Stopped(),
    "released": Released(NOW),
    "old lease released": Released(OLD),
    "session over": SessionOver(),
}
HALT = (Stop(graceful=False),)

# Every pair that changes the state or asks for something; all others must leave everything as it is.
STEPS: dict[tuple[str, str], Step] = {
    ("idle", "wanted"): (Leasing(), (Acquire(),)),
    ("idle", "leased the same"): (Releasing(NOW), (Release(NOW),)),
    ("idle", "leased anew"): (Releasing(NEW), (Release(NEW),)),
    ("idle", "leased an older one"): (Releasing(OLD), (Release(OLD),)),
    ("leasing", "wanted"): (Leasing(), (Acquire(),)),
    ("leasing", "unwanted"): (Idle(), ()),
    ("leasing", "session over"): (Idle(), ()),
    ("leasing", "leased the same"): (Fencing(NOW), (FenceIn(NOW),)),
    ("leasing", "leased anew"): (Fencing(NEW), (FenceIn(NEW),)),
    ("leasing", "leased an older one"): (Fencing(OLD), (FenceIn(OLD),)),
    ("fencing", "wanted"): (Fencing(NOW), (FenceIn(NOW),)),
    ("fencing", "unwanted"): (Releasing(NOW), (Release(NOW),)),
    ("fencing", "leased anew"): (Fencing(NEW), (FenceIn(NEW),)),
    ("fencing", "lease gone"): (Idle(), ()),
    ("fencing", "fenced in"): (Active(NOW, 3), (Start(3),)),
    ("fencing", "refused"): (Releasing(NOW), (Release(NOW),)),
    ("fencing", "session over"): (Idle(), ()),
    ("active", "unwanted"): (Stopping(NOW, graceful=True), (Stop(graceful=True),)),
    ("active", "leased anew"): (Active(NEW, 3), ()),
    ("active", "lease gone"): (Stopping(None, graceful=False), HALT),
    ("active", "epoch gone"): (Stopping(NOW, graceful=False), HALT),
    ("active", "start failed"): (Stopping(NOW, graceful=False), HALT),
    ("active", "session over"): (Stopping(None, graceful=False), HALT),
    ("stopping", "leased anew"): (Stopping(NEW, graceful=True), ()),
    ("stopping", "lease gone"): (Stopping(None, graceful=False), HALT),
    ("stopping", "epoch gone"): (Stopping(NOW, graceful=False), HALT),
    ("stopping", "start failed"): (Stopping(NOW, graceful=False), HALT),
    ("stopping", "stopped"): (Releasing(NOW), (Release(NOW),)),
    ("stopping", "session over"): (Stopping(None, graceful=False), HALT),
    ("halting", "leased anew"): (Stopping(NEW, graceful=False), ()),
    ("halting", "lease gone"): (Stopping(None, graceful=False), ()),
    ("halting", "stopped"): (Releasing(NOW), (Release(NOW),)),
    ("halting", "session over"): (Stopping(None, graceful=False), ()),
    ("stopping without lease", "leased the same"): (Stopping(NOW, graceful=False), ()),
    ("stopping without lease", "leased anew"): (Stopping(NEW, graceful=False), ()),
    ("stopping without lease", "leased an older one"): (Stopping(OLD, graceful=False), ()),
    ("stopping without lease", "stopped"): (Idle(), ()),
    ("releasing", "wanted"): (Releasing(NOW), (Release(NOW),)),
    ("releasing", "unwanted"): (Releasing(NOW), (Release(NOW),)),
    ("releasing", "leased anew"): (Releasing(NEW), (Release(NEW),)),
    ("releasing", "lease gone"): (Idle(), ()),
    ("releasing", "released"): (Idle(), ()),
    ("releasing", "session over"): (Idle(), ()),
}
PAIRS = list(itertools.product(STATES, EVENTS))


def is_served(state: State) -> bool:
    return isinstance(state, Active | Stopping)


def test_the_walk_leaves_out_no_state_and_no_event() -> None:
    assert {type(state) for state in STATES.values()} == set(get_args(machine.State))
    assert {type(event) for event in EVENTS.values()} == set(get_args(machine.Event))


def test_every_pair() -> None:
    taken = {(state, event): transition(STATES[state], EVENTS[event]) for state, event in PAIRS}
    assert taken == {(state, event): STEPS.get((state, event), (STATES[state], ())) for state, event in PAIRS}


@pytest.mark.parametrize("state", STATES)
def test_invariants_hold_for_every_pair(state: str) -> None:
    for event in EVENTS:
        check_invariants(state, event)


def check_invariants(state: str, event: str) -> None:
    before, cause = STATES[state], EVENTS[event]
    after, actions = transition(before, cause)
    starts = [action for action in actions if isinstance(action, Start)]
    stops = [action for action in actions if isinstance(action, Stop)]
    releases = [action for action in actions if isinstance(action, Release)]
    assert len(actions) <= 1
    # 1: Start exactly on entering Active, which is entered through a fence only.
    entered = isinstance(after, Active) and not isinstance(before, Active)
    assert bool(starts) == entered
    assert not entered or isinstance(cause, FencedIn)
    # 2: Active is left with a Stop only, what was served is given up after Stopped only.
    if isinstance(before, Active) and not isinstance(after, Active):
        assert stops
        assert isinstance(after, Stopping)
    if is_served(before) and not is_served(after):
        assert isinstance(cause, Stopped)
    # 3: no Release while it may still be served.
    assert not (releases and is_served(after))
    # 4: no way back from an immediate stop to a graceful one.
    if isinstance(before, Stopping) and not before.graceful and isinstance(after, Stopping):
        assert not after.graceful
    if isinstance(before, Stopping):
        assert all(not stop.graceful for stop in stops)
    # The end of the session leaves no lease anywhere.
    if isinstance(cause, SessionOver):
        assert isinstance(after, Idle) or after == Stopping(None, graceful=False)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("level", ["wanted", "unwanted"])
def test_levels_settle(state: str, level: str) -> None:
    first, _ = transition(STATES[state], EVENTS[level])
    again, actions = transition(first, EVENTS[level])
    assert again == first
    # What is repeated are requests that have not been answered yet, never a start or a stop.
    assert all(isinstance(action, Acquire | FenceIn | Release) for action in actions)


def test_from_every_reachable_state_a_wanted_shard_becomes_active_and_an_unwanted_one_idle() -> None:
    """Explores all states that any order of events can lead to, then lets everything asked for succeed."""
    seen: set[State] = {Idle()}
    queue = deque(seen)
    while queue:
        state = queue.popleft()
        for event in EVENTS.values():
            after, _ = transition(state, event)
            if after not in seen:
                seen.add(after)
                queue.append(after)
    assert len(seen) > len(STATES)
    for state in seen:
        assert isinstance(settle(state, Wanted()), Active)
        assert settle(state, Unwanted()) == Idle()


def settle(state: State, level: Event) -> State:
    token = 100
    for _ in range(10):
        state, actions = transition(state, level)
        if isinstance(state, Stopping):
            state, actions = transition(state, Stopped())
        while actions:
            token += 1
            match actions[0]:
                case Acquire():
                    answer: Event = Leased(Lease(shard=7, generation=9, token=token))
                case FenceIn(lease):
                    answer = FencedIn(lease, token)
                case Release(lease):
                    answer = Released(lease)
                case Stop():
                    answer = Stopped()
                case _:
                    break
            state, actions = transition(state, answer)
    return state
