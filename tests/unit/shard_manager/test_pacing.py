"""When the leader may move what."""

from datetime import timedelta

from shard_manager.coordinator import Plan
from shard_manager.pacing import Pacing

PLAN = Plan(version=1, shards=6, owners={0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "d"})


def pacing() -> Pacing:
    return Pacing(
        settle=timedelta(seconds=5), loss_guard=timedelta(seconds=3), wave=timedelta(seconds=1), started_s=100.0
    )


def test_a_single_node_with_nothing_to_wait_for_waits_for_nothing() -> None:
    alone = Plan(version=1, shards=6, owners={0: "a"})
    assert pacing().pace({"a"}, alone, 100.0).hold == frozenset()
    assert pacing().pace({"a"}, None, 100.0).hold == frozenset()


def test_one_node_that_vanishes_is_dead_at_once() -> None:
    leader = pacing()
    leader.pace({"a", "b", "c", "d"}, PLAN, 110.0)
    assert leader.pace({"a", "c", "d"}, PLAN, 120.0).hold == frozenset()


def test_several_that_vanish_together_get_time_to_come_back() -> None:
    leader = pacing()
    leader.pace({"a", "b", "c", "d"}, PLAN, 110.0)
    assert leader.pace({"a", "d"}, PLAN, 120.0).hold == {"b", "c"}
    assert leader.pace({"a", "b", "d"}, PLAN, 121.0).hold == {"c"}
    assert leader.pace({"a", "b", "d"}, PLAN, 122.9).hold == {"c"}
    assert leader.pace({"a", "b", "d"}, PLAN, 123.0).hold == frozenset()


def test_nodes_that_vanish_one_after_the_other_are_each_dead_at_once() -> None:
    leader = pacing()
    leader.pace({"a", "b", "c", "d"}, PLAN, 110.0)
    assert leader.pace({"a", "c", "d"}, PLAN, 120.0).hold == frozenset()
    assert leader.pace({"a", "d"}, PLAN, 125.0).hold == frozenset()


def test_a_leader_that_has_just_come_back_waits_for_the_others() -> None:
    leader = pacing()
    assert leader.pace({"a"}, PLAN, 100.1).hold == {"b", "c", "d"}
    assert leader.pace({"a", "b", "c"}, PLAN, 102.9).hold == {"d"}
    assert leader.pace({"a", "b", "c"}, PLAN, 103.2).hold == frozenset()


def test_balance_waits_until_membership_is_still() -> None:
    leader = pacing()
    assert not leader.pace({"a", "b"}, PLAN, 110.0).voluntary
    assert not leader.pace({"a", "b"}, PLAN, 114.9).voluntary
    assert leader.pace({"a", "b"}, PLAN, 115.0).voluntary
    assert not leader.pace({"a", "b", "c"}, PLAN, 116.0).voluntary
    assert leader.pace({"a", "b", "c"}, PLAN, 121.0).voluntary
    leader.moved(121.0)
    assert not leader.pace({"a", "b", "c"}, PLAN, 125.9).voluntary
    assert leader.pace({"a", "b", "c"}, PLAN, 126.0).voluntary


def test_the_nodes_of_a_new_cluster_are_balanced_at_once() -> None:
    leader = pacing()
    assert leader.pace({"a"}, None, 110.0).unbounded
    joined = leader.pace({"a", "b", "c", "d"}, PLAN, 114.9)
    assert joined.voluntary
    assert joined.unbounded
    late = leader.pace({"a", "b", "c", "d", "e"}, PLAN, 115.0)
    assert not late.voluntary
    assert not late.unbounded


def test_a_new_session_of_an_old_cluster_is_no_new_cluster() -> None:
    assert not pacing().pace({"a", "b"}, PLAN, 100.0).unbounded
