"""The protocols hold in every order of events, and none of their protections can be left out.

Without a protection, the checker has to find what goes wrong; `-rP` shows the shortest way there for each.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final

import pytest

from tests.model.attempts import Attempts
from tests.model.checker import Model, Violation, explore
from tests.model.credit import Credit
from tests.model.doubt import Doubt
from tests.model.fencing import Fencing
from tests.model.firing import Firing
from tests.model.protections import Protection
from tests.model.silence import Silence
from tests.model.takeover import Takeover


def _heard_by_the_owner(removed: Collection[Protection]) -> Silence:
    return Silence(removed, by_owner=True)


MODELS: Final[dict[str, Callable[[Collection[Protection]], Model[Any]]]] = {
    "fencing": Fencing,
    "attempts": Attempts,
    "takeover": Takeover,
    "silence": Silence,
    "silence, heard by the owner": _heard_by_the_owner,
    "doubt": Doubt,
    "firing": Firing,
    "credit": Credit,
}
MIN_STATES: Final = {
    "fencing": 5000, "attempts": 10_000, "takeover": 1000, "silence": 50, "silence, heard by the owner": 100,
    "doubt": 300, "firing": 500, "credit": 5000,
}  # fmt: skip

RUNS_GIVEN_BACK: Final = "an attempt runs that was given back"
TWO_RUN: Final = "two attempts run on workers with a lease"
TAKEN_FOR_DEAD: Final = "a worker that lives is taken for dead"
TOO_MANY: Final = "more attempts run than the worker has slots"
HEARD_AND_LOST: Final = "a worker is given up that a node hears"
FENCED_OUT: Final = "a stalled node fences out a newer lease"

# Of each protection: the model that needs it, what goes wrong without, and the last steps on the way there.
NEEDED: Final[dict[Protection, tuple[str, str, tuple[str, ...]]]] = {
    Protection.FOR_SHARE: ("fencing", "a statement of a fenced node commits", ("begin 0", "bump 0", "commit 0")),
    Protection.CONDITIONAL_FENCE_IN: (
        "fencing", FENCED_OUT, ("grant 0", "expire 0", "grant 1", "fence-in 1", "fence-in 0"),
    ),
    Protection.GENERATION: ("fencing", FENCED_OUT, ("wipe", "grant 1", "fence-in 1", "fence-in 0")),
    Protection.BUMP_BEFORE_READ_BACK: (
        "fencing", "a claim commits that its node has read back as not made",
        ("lose the connection 0", "conclude 0", "commit 0"),
    ),
    Protection.OPEN_CLAIM: (
        "attempts", "the outcome of an attempt counts twice", ("fail 1", "result (ack lost) 1", "result 1"),
    ),
    Protection.REAPER_RECHECK: ("attempts", TWO_RUN, ("suspect 1", "return 1", "reap 1", "deliver 2")),
    Protection.KILL_GRACE: ("attempts", TWO_RUN, ("time is over 1", "supersede 1", "deliver 2")),
    Protection.EPOCH_GATE: (
        "takeover", RUNS_GIVEN_BACK,
        ("node 1 sends 1", "node 2 takes over", "node 2 takes in a report", "worker 1 reads from node 1"),
    ),
    # Interleaving 1 of the claim's list.
    Protection.OLDER_EPOCH: (
        "takeover", RUNS_GIVEN_BACK,
        ("node 2 takes over", "node 2 says hello", "node 2 claims 1 for worker 1", "node 2 sends 1",
         "worker 1 reads from node 2", "node 2 takes in a report", "worker 1 reads from node 2"),
    ),
    Protection.STREAM_DISCARD: (
        "takeover", RUNS_GIVEN_BACK, ("worker 1 breaks its stream", "worker 1 reads from the old stream"),
    ),
    Protection.FULL_LEASE_AFTER_OUTAGE: ("silence", TAKEN_FOR_DEAD, ("owner renews", "reap")),
    Protection.AS_OF_RENEWAL: ("silence", TAKEN_FOR_DEAD, ("jump", "reap")),
    Protection.OWN_EARS: ("silence, heard by the owner", TAKEN_FOR_DEAD, ("falls silent", "is heard again", "reap")),
    Protection.DOUBT_TAKEN_OUT: (
        "doubt", HEARD_AND_LOST, ("break 0", "note 0", "renew 1", "give up 0"),
    ),
    Protection.DOUBT_STANDS: ("doubt", HEARD_AND_LOST, ("break 0", "renew 1", "give up 0")),
    Protection.FIRE_NEXT: ("firing", "a time is fired twice", ("read 0", "read 1", "fire 1 by node 0")),
    Protection.FIRE_VERSION: (
        "firing", "a schedule fires by a definition that has changed", ("read 0", "fire 1 by node 0"),
    ),
    Protection.ACK_BEFORE_RAISE: ("credit", TOO_MANY, ("tell 0 slots 0", "tell 1 slots 1", "worker reads 1")),
    Protection.FRESH_CREDIT: ("credit", TOO_MANY, ("break stream 0", "hand out 0", "worker reads 1")),
}  # fmt: skip


def violation_of(name: str, *removed: Protection) -> Violation | None:
    """Explore a model without some protections."""
    found = explore(MODELS[name](removed)).violation
    if found is not None:
        print(f"{name} without {', '.join(one.name for one in removed) or 'nothing'}: {found}")
    return found


def test_the_protocols_hold_in_every_order_of_events() -> None:
    """All of them in less than five seconds, so that they can be run on every change."""
    began_s = time.process_time()
    for name, model in MODELS.items():
        explored = explore(model(()))
        assert explored.violation is None, f"{name}: {explored.violation}"
        assert explored.states >= MIN_STATES[name], f"{name} has lost most of its states: {explored.states}"
        print(f"{name}: {explored.states} states, {explored.transitions} transitions")
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize("protection", NEEDED, ids=lambda protection: protection.name)
def test_without_a_protection_something_goes_wrong(protection: Protection) -> None:
    name, wrong, steps = NEEDED[protection]
    found = violation_of(name, protection)
    assert found is not None
    assert found.wrong == wrong
    way = iter(" ".join(map(str, action)) for action in found.actions)
    assert all(step in way for step in steps), f"{steps} is not how it went: {found}"


def test_every_protection_is_needed_but_the_second_line() -> None:
    """A pause raises the version, so comparing the version is enough; both have to go for a paused schedule to fire."""
    assert set(NEEDED) == set(Protection) - {Protection.FIRE_PAUSED}
    assert violation_of("firing", Protection.FIRE_PAUSED) is None
    found = violation_of("firing", Protection.FIRE_PAUSED, Protection.FIRE_VERSION)
    assert found is not None
    assert found.wrong == "a paused schedule fires"
