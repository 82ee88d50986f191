"""Plans of faults, and draws of jobs: the same from the same seed."""

import pytest

from tests.cluster.client import Draw, Load
from tests.cluster.nemeses import Times, plan
from tests.cluster.nemeses.processes import STOP_NODE, STOP_WORKER
from tests.cluster.worker_program import FLAKY, KEYED, LONG, OVERRUN, SHORT, SNOOZED

TIMES = Times(lease_s=5.0, session_s=5.0)
MIXED = ("kill_node", "kill_worker", "kill_postgres", STOP_NODE, STOP_WORKER, "terminate_backends")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("seconds", [25.0, 60.0])
def test_a_plan_has_every_fault_and_brings_every_victim_back(seed: int, seconds: float) -> None:
    blows = plan(seed, seconds, MIXED, times=TIMES)
    assert {blow.fault for blow in blows} == set(MIXED)
    assert [blow.at_s for blow in blows] == sorted(blow.at_s for blow in blows)
    assert all(blow.at_s >= 0.0 and blow.at_s + blow.hold_s <= seconds + 0.01 for blow in blows)
    assert all(blow.hold_s > TIMES.lease_s for blow in blows if blow.fault is STOP_WORKER)
    assert len(blows) >= seconds / 4


def test_a_plan_follows_from_its_seed() -> None:
    first, same, other = (plan(seed, 60.0, MIXED, times=TIMES) for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_stops_of_nodes_are_shorter_and_longer_than_a_session() -> None:
    holds = [
        blow.hold_s for seed in range(50) for blow in plan(seed, 25.0, MIXED, times=TIMES) if blow.fault is STOP_NODE
    ]
    assert min(holds) < TIMES.session_s < max(holds)


def test_draws_follow_from_their_seed_and_cover_everything() -> None:
    def draw(seed: int) -> list[object]:
        source = Draw(seed, Load())
        return [source.wish(dedupe=True, now=1000.0, until=1010.0) for _ in range(2000)]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    source = Draw(5, Load())
    wishes = [source.wish(dedupe=number % 2 == 0, now=1000.0, until=1003.0) for number in range(4000)]
    assert {wish.job.handler for wish in wishes} == {SHORT, KEYED, FLAKY, SNOOZED, OVERRUN, LONG}
    assert len({wish.job.name for wish in wishes}) == len(wishes)
    assert {wish.job.concurrency_limit for wish in wishes} == {None, 1, 2, 3}
    due = [wish.job.due_at.timestamp() for wish in wishes if wish.job.due_at is not None]
    assert due
    assert 1000.0 < min(due) <= max(due) <= 1003.0
    assert all(bool(wish.job.dedupe_key) == (number % 2 == 0) for number, wish in enumerate(wishes))
