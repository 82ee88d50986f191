"""What a start waits for, and when it takes a name for that of a live node."""

import asyncio

import pytest

from server.startup import NameClaim, patiently
from server.store.errors import AccessDenied, Refused, Unavailable
from shard_manager.errors import CoordinatorFailed, CoordinatorUnavailable, NodeNameTaken


def taken(incarnation: int, expires_in_s: float = 10.0) -> NodeNameTaken:
    return NodeNameTaken("node-a", incarnation=incarnation, address="h:1", expires_in_s=expires_in_s)


def test_a_name_is_a_live_nodes_when_its_session_outlives_itself() -> None:
    claim = NameClaim()
    assert not claim.is_live(taken(1), 100.0)
    # As long as the session of a dead one may be left, half as long again, and 3 s.
    assert not claim.is_live(taken(1, 0.5), 117.9)
    assert claim.is_live(taken(1), 118.0)


def test_another_holder_of_the_name_gets_its_own_time() -> None:
    claim = NameClaim()
    assert not claim.is_live(taken(1), 100.0)
    assert not claim.is_live(taken(2), 118.0)
    assert claim.is_live(taken(2), 136.0)


@pytest.mark.parametrize("away", [Unavailable("refused"), CoordinatorUnavailable("join", "refused")])
async def test_what_is_away_is_waited_for_and_told(away: Exception) -> None:
    told: list[str] = []
    failures = [away, away]

    async def step() -> str:
        if failures:
            raise failures.pop()
        return "there"

    assert await patiently("the thing", step, told.append) == "there"
    assert told[0].startswith("waits for the thing: ")
    assert (len(told), told[-1]) == (3, "")


@pytest.mark.parametrize(
    "hopeless", [AccessDenied("password"), Refused("42P01", "no table"), CoordinatorFailed("join", "denied")]
)
async def test_what_waiting_does_not_mend_is_raised_at_once(hopeless: Exception) -> None:
    async def step() -> None:
        raise hopeless

    with pytest.raises(type(hopeless)):
        await asyncio.wait_for(patiently("the thing", step, lambda text: None), 5)
