"""Epochs only grow, each has one owner, and nobody acts for a shard of another one's."""

import pytest

from tests.cluster.checker import check
from tests.cluster.checker_times import check_epochs
from tests.cluster.history import EpochRaise, Trespass
from tests.cluster.promises import Promise
from tests.unit.cluster.histories import history


def raised(before: int, epoch: int, *, shard: int = 1, process: str = "node-1.1", incarnation: int = 7) -> EpochRaise:
    return EpochRaise(shard, before, epoch, process, process.partition(".")[0], incarnation)


def test_epochs_that_grow() -> None:
    several = (raised(0, 1), raised(1, 2, process="node-2.1", incarnation=8), raised(2, 3), raised(0, 1, shard=2))
    verdict = check(history(raises=several))
    assert verdict.ok
    assert (verdict.numbers["epochs"], verdict.numbers["epoch_violations"]) == (4, 0)


@pytest.mark.parametrize(
    "raises",
    [
        (raised(3, 3),),
        (raised(3, 2),),
        (raised(0, 1), raised(1, 3), raised(1, 2)),
        (raised(0, 2), raised(0, 2, process="node-2.1", incarnation=8)),
    ],
    ids=["not raised", "fell", "fell meanwhile", "had twice"],
)
def test_epochs_that_do_not(raises: tuple[EpochRaise, ...]) -> None:
    verdict = check(history(raises=raises))
    assert {one.promise for one in verdict.violations} == {Promise.EPOCH}


def test_an_epoch_of_two_incarnations_is_told_of() -> None:
    found = check_epochs(history(raises=(raised(0, 2), raised(0, 2, process="node-2.1", incarnation=8))))
    assert any("belongs to" in one.text for one in found.violations)


@pytest.mark.parametrize("deed", ["claim", "reap", "fire", "clean"])
def test_nobody_acts_without_owning_the_shard(deed: str) -> None:
    trespass = Trespass(deed, 1, 5, 4, "node-1.1", "node-2.1")
    verdict = check(history(trespasses=(trespass,)))
    assert {one.promise for one in verdict.violations} == {Promise.EPOCH}
    assert deed in str(verdict.violations[0])
