"""When a worker is cut off from every node that could keep its lease, and what that excuses."""

import pytest

from tests.cluster.checker import check
from tests.cluster.hearing import RETURN_S, cut_off, intersection, union
from tests.cluster.history import Cut, History, Life
from tests.cluster.promises import Promise
from tests.cluster.standing import Cause
from tests.unit.cluster.histories import RESET_GRACE_S, again, at, execution, history, life, rerun, stop


def node(number: int = 1, started: float = 0.0, **changes: object) -> Life:
    values: dict[str, object] = {
        "kind": "node", "process": f"node-{number}", "pid": number, "started": at(started)
    } | changes  # fmt: skip
    return Life(**values)  # type: ignore[arg-type]


def cut(source: str, target: str, began: float, ended: float | None) -> Cut:
    return Cut(source=source, target=target, began=at(began), ended=None if ended is None else at(ended))


def times(*cuts: Cut, nodes: tuple[Life, ...] = (node(1), node(2)), workers: tuple[Life, ...] = (life(1),)) -> object:
    return cut_off(history(lives=(*nodes, *workers), cuts=cuts)).get("worker-1", [])


def test_a_worker_that_one_node_hears_is_not_cut_off() -> None:
    assert times(cut("worker-1", "node-1", 10.0, 30.0)) == []


def test_a_worker_that_no_node_hears_is_cut_off() -> None:
    first, second = cut("worker-1", "node-1", 10.0, 30.0), cut("worker-1", "node-2", 20.0, 25.0)
    assert times(first, second) == [(20.0, 25.0 + RETURN_S)]
    assert times(cut("worker-1", "node-1", 10.0, None), second) == [(20.0, 25.0 + RETURN_S)]


@pytest.mark.parametrize(
    "second",
    [
        node(2, killed=at(20.0)),
        node(2, gone=at(20.0)),
        node(2, stops=(stop(20.0, None),)),
    ],
    ids=["killed", "gone", "stopped"],
)
def test_a_node_that_is_away_hears_nobody(second: Life) -> None:
    cuts = (cut("worker-1", "node-1", 10.0, 30.0),)
    assert times(*cuts, nodes=(node(1), second)) == [(20.0, 30.0 + RETURN_S)]
    assert times(nodes=(node(1), second)) == []


def test_a_node_without_postgres_keeps_no_lease() -> None:
    cuts = (cut("worker-1", "node-1", 10.0, 30.0), cut("node-2", "postgres-2", 15.0, 16.0))
    assert times(*cuts) == [(15.0, 16.0 + RETURN_S)]
    # None of them ends a lease either while it has no database.
    assert times(cut("node-1", "postgres", 15.0, 26.0), cut("node-2", "postgres", 15.0, 26.0)) == []


def test_a_node_that_was_started_again_hears_after_a_while() -> None:
    nodes = (node(1), node(2, killed=at(8.0)), node(2, 21.0, pid=9))
    assert times(cut("worker-1", "node-1", 10.0, 40.0), nodes=nodes) == [(10.0, 21.0 + RETURN_S)]


def test_a_stop_of_the_worker_and_a_cut_add_up() -> None:
    cuts = (cut("worker-1", "node-1", 10.0, 20.0), cut("worker-1", "node-2", 10.0, 20.0))
    assert times(*cuts, workers=(life(1, stops=(stop(18.0, 30.0),)),)) == [(10.0, 30.0 + RETURN_S)]


def test_intervals() -> None:
    assert union([(3.0, 4.0), (1.0, 2.0), (2.0, 2.5), (3.5, 3.7)]) == [(1.0, 2.5), (3.0, 4.0)]
    assert intersection([(1.0, 3.0), (4.0, 9.0)], [(2.0, 5.0), (8.0, 10.0)]) == [(2.0, 3.0), (4.0, 5.0), (8.0, 9.0)]
    assert intersection([(1.0, 2.0)], []) == []


def excused(claimed: float, *cuts: Cut) -> History:
    lives = (node(1, -100.0), life(1), life(2))
    return rerun(execution(end=9.0), again(start=claimed, end=12.0), *lives, cuts=cuts)


def test_a_job_of_a_worker_that_was_cut_off_may_run_again() -> None:
    cuts = (cut("worker-1", "node-1", 2.0, 8.0),)
    verdict = check(excused(2.0 + RESET_GRACE_S + 0.1, *cuts))
    assert verdict.ok
    assert verdict.numbers[f"again_{Cause.WORKER_CUT_OFF}"] == 1
    assert verdict.numbers["overlapping_exempt"] == 1
    broken = {one.promise for one in check(excused(2.0 + RESET_GRACE_S - 0.1, *cuts)).violations}
    assert broken == {Promise.DUPLICATE, Promise.OVERLAP}


def test_a_cut_that_was_over_before_the_claim_excuses_nothing() -> None:
    long_ago = execution(start=20.0, end=30.0)
    verdict = check(
        rerun(
            long_ago,
            again(start=25.0, end=31.0),
            node(1),
            life(1),
            life(2),
            cuts=(cut("worker-1", "node-1", 2.0, 8.0),),
        )
    )
    assert {one.promise for one in verdict.violations} == {Promise.DUPLICATE, Promise.OVERLAP}
