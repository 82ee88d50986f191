"""What the demo sees of its cluster: who serves which shard, how fast each node is, who grants the leases."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from server.demo.leases import Choice, choose
from server.demo.ownership import Ownership
from server.demo.rates import NodeRates
from server.demo.settings import CoordinatorKind
from server.embedded import ZookeeperMissing
from server.embedded import zookeeper_installation as installation
from server.store.shards import ShardRow

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def row(shard: int, owner: str | None, epoch: int = 1, after_s: float = 0.0) -> ShardRow:
    return ShardRow(shard, epoch, owner, 1 if owner else None, BEGAN + timedelta(seconds=after_s))


def test_balance_needs_every_shard_served_and_a_difference_of_one_at_most() -> None:
    seen = Ownership()
    assert not seen.is_balanced(["a", "b"])
    seen.see([row(0, "a"), row(1, "a"), row(2, None)])
    assert not seen.is_balanced(["a", "b"])
    seen.see([row(0, "a"), row(1, "a"), row(2, "a")])
    assert not seen.is_balanced(["a", "b"])
    seen.see([row(0, "a"), row(1, "a"), row(2, "b")])
    assert seen.is_balanced(["a", "b"])
    assert not seen.is_balanced(["a", "c"])


def test_a_killed_nodes_shards_are_recovered_with_the_last_of_them() -> None:
    seen = Ownership()
    seen.see([row(0, "a"), row(1, "a"), row(2, "b"), row(3, None)])
    seen.lose("a")
    assert seen.orphans == {0, 1}
    assert (seen.recovered_at, seen.moved) == (None, 0)
    # The same epoch is the killed node's; a shard between two owners is nobody's; another node's do not count.
    seen.see([row(0, "b", 2, 5.0), row(1, None, 1), row(2, "b", 9, 90.0), row(3, "b", 9, 90.0)])
    assert (seen.recovered_at, seen.moved) == (None, 1)
    seen.see([row(0, "c", 3, 30.0), row(1, "c", 2, 7.0), row(2, "b"), row(3, "b")])
    assert seen.recovered_at == (BEGAN + timedelta(seconds=7)).timestamp()
    assert seen.moved == 2


def test_a_node_that_comes_back_to_its_shards_has_moved_none() -> None:
    seen = Ownership()
    seen.see([row(0, "a")])
    seen.lose("a")
    seen.see([row(0, "a", 2, 1.0)])
    assert seen.moved == 0
    assert seen.recovered_at == (BEGAN + timedelta(seconds=1)).timestamp()


def test_a_finished_job_counts_for_the_node_that_serves_its_shard_for_a_second() -> None:
    rates = NodeRates()
    rates.note({}, {}, 10.0)
    rates.note({0: 5, 1: 3}, {0: "a", 1: "b"}, 10.5)
    rates.note({0: 6, 1: 3}, {0: "b", 1: "b"}, 11.0)
    assert (rates.of("a"), rates.of("b"), rates.of("c")) == (5.0, 4.0, 0.0)
    rates.note({0: 6, 1: 3}, {0: "b", 1: "b"}, 11.6)
    assert (rates.of("a"), rates.of("b")) == (0.0, 1.0)


@pytest.fixture
def no_zookeeper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation, "_JARS", tmp_path)
    monkeypatch.delenv(installation.ADDRESS_VARIABLE, raising=False)


@pytest.mark.usefixtures("no_zookeeper")
def test_without_zookeeper_postgres_grants_the_leases_and_the_reason_is_known() -> None:
    choice = choose(None)
    assert choice.kind is CoordinatorKind.POSTGRES
    assert "apt-get install" in choice.regret
    assert choose(CoordinatorKind.POSTGRES) == Choice(kind=CoordinatorKind.POSTGRES)
    with pytest.raises(ZookeeperMissing, match="apt-get install"):
        choose(CoordinatorKind.ZOOKEEPER)


@pytest.mark.usefixtures("no_zookeeper")
@pytest.mark.parametrize("wanted", [None, CoordinatorKind.ZOOKEEPER])
def test_a_running_zookeeper_that_is_named_is_used(
    wanted: CoordinatorKind | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(installation.ADDRESS_VARIABLE, "zk:2181")
    assert choose(wanted) == Choice(kind=CoordinatorKind.ZOOKEEPER)
