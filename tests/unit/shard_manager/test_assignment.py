"""The planner: examples with known answers, and properties over arbitrary clusters."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_manager.assignment import MoveCause, Planned, plan
from shard_manager.coordinator import Member, MemberState, Plan
from shard_manager.errors import InvalidSetting, ShardCountMismatch
from shard_manager.orders import Eviction, Orders, Pin

unhurried = settings(deadline=None)
K = TypeVar("K")
V = TypeVar("V")
UP, DRAINING, UNHEALTHY = MemberState.UP, MemberState.DRAINING, MemberState.UNHEALTHY


def node(name: str, state: MemberState = UP, weight: int = 1) -> Member:
    return Member(node=name, incarnation=1, state=state, weight=weight)


def nodes(*names: str) -> list[Member]:
    return [node(name) for name in names]


def counts(planned: Plan | Planned) -> dict[str, int]:
    owners = planned.owners if isinstance(planned, Plan) else planned.plan.owners
    return dict(Counter(owners.values()))


def pinned(pins: Mapping[int, str]) -> Orders:
    return Orders(pins={shard: Pin(node=name) for shard, name in pins.items()})


def stored(owners: Mapping[int, str], shards: int, *, paused: bool = False) -> Plan:
    return Plan(version=5, shards=shards, owners=owners, orders=Orders(paused=paused))


names = st.sampled_from([f"n{number}" for number in range(7)])
members = st.lists(
    st.builds(node, names, st.sampled_from([UP, UP, UP, DRAINING, UNHEALTHY]), st.integers(1, 5)),
    unique_by=lambda member: member.node,
    max_size=7,
)
up_members = st.lists(
    st.builds(node, names, st.just(UP), st.integers(1, 5)), unique_by=lambda m: m.node, min_size=1, max_size=7
)
shard_counts = st.integers(1, 64)
owner_names = st.sampled_from([f"n{number}" for number in range(9)])


@st.composite
def situations(
    draw: st.DrawFn, who: st.SearchStrategy[list[Member]] = members
) -> tuple[list[Member], Plan | None, int]:
    shards = draw(shard_counts)
    owners = draw(st.one_of(st.none(), st.dictionaries(st.integers(0, shards - 1), owner_names)))
    return draw(who), None if owners is None else stored(owners, shards), shards


loads = st.dictionaries(st.integers(0, 63), st.floats(0, 100), max_size=64)
pinnings = st.dictionaries(st.integers(0, 63), owner_names, max_size=20)


# Examples.


def test_one_node_gets_everything() -> None:
    planned = plan(nodes("a"), None, 64)
    assert planned.plan.owners == dict.fromkeys(range(64), "a")
    assert planned.plan.version == 1
    assert {move.cause for move in planned.moves} == {MoveCause.UNOWNED}


def test_a_restarted_node_finds_its_plan_unchanged() -> None:
    previous = plan(nodes("a"), None, 64).plan
    planned = plan([Member(node="a", incarnation=2)], previous, 64)
    assert planned.plan is previous
    assert not planned.changed


@pytest.mark.parametrize(("shards", "before"), [(1024, 8), (64, 2), (64, 3), (10, 3)])
def test_a_joiner_takes_its_share_and_nothing_else_moves(shards: int, before: int) -> None:
    old = [f"n{number:02}" for number in range(before)]
    previous = plan(nodes(*old), None, shards).plan
    planned = plan(nodes(*old, "new"), previous, shards)
    assert {move.target for move in planned.moves} == {"new"}
    assert len(planned.moves) == shards // (before + 1)


def test_a_dead_nodes_shards_are_spread_and_nothing_else_moves() -> None:
    previous = plan(nodes("a", "b", "c", "d"), None, 64).plan
    planned = plan(nodes("a", "b", "c"), previous, 64)
    assert {move.source for move in planned.moves} == {"d"}
    assert {move.cause for move in planned.moves} == {MoveCause.OWNER_GONE}
    assert sorted(counts(planned).values()) == [21, 21, 22]


def test_a_draining_node_gives_everything_away() -> None:
    previous = plan(nodes("a", "b"), None, 64).plan
    planned = plan([node("a"), node("b", DRAINING)], previous, 64)
    assert counts(planned) == {"a": 64}
    assert {move.cause for move in planned.moves} == {MoveCause.DRAIN}


def test_the_last_draining_node_leaves_its_shards_without_owner() -> None:
    previous = plan(nodes("a"), None, 4).plan
    planned = plan([node("a", DRAINING)], previous, 4)
    assert planned.plan.owners == {}
    assert {move.target for move in planned.moves} == {None}


def test_unhealthy_nodes_lose_their_shards_only_if_others_are_healthy() -> None:
    previous = plan(nodes("a", "b"), None, 64).plan
    assert counts(plan([node("a"), node("b", UNHEALTHY)], previous, 64)) == {"a": 64}
    nobody_well = plan([node("a", UNHEALTHY), node("b", UNHEALTHY)], previous, 64)
    assert nobody_well.plan is previous


def test_nodes_get_shards_by_weight() -> None:
    assert counts(plan([node("a"), node("b", weight=3)], None, 64)) == {"a": 16, "b": 48}


def test_no_more_moves_for_balance_than_allowed_but_orphans_all_at_once() -> None:
    previous = stored({shard: "a" if shard < 50 else "gone" for shard in range(64)}, 64)
    planned = plan(nodes("a", "b"), previous, 64, max_moves=3)
    causes = Counter(move.cause for move in planned.moves)
    assert causes == {MoveCause.OWNER_GONE: 14, MoveCause.BALANCE: 3}
    assert counts(planned) == {"a": 47, "b": 17}


def test_limited_moves_reach_balance_in_the_end() -> None:
    current = plan(nodes("a"), None, 64).plan
    for _ in range(7):
        current = plan(nodes("a", "b", "c"), current, 64, max_moves=7).plan
    assert sorted(counts(current).values()) == [21, 21, 22]


def test_while_paused_only_orphans_are_placed() -> None:
    previous = stored({shard: "a" if shard < 6 else "gone" for shard in range(8)}, 8, paused=True)
    planned = plan(nodes("a", "b"), previous, 8)
    assert counts(planned) == {"a": 6, "b": 2}
    assert planned.plan.orders.paused
    assert counts(plan(nodes("a", "b"), planned.plan, 8, orders=Orders())) == {"a": 4, "b": 4}


def test_a_pin_moves_its_shard_and_stays_in_the_plan() -> None:
    previous = plan(nodes("a", "b"), None, 64).plan
    shard = min(previous.shards_of("a"))
    planned = plan(nodes("a", "b"), previous, 64, orders=pinned({shard: "b"}))
    assert planned.plan.owners[shard] == "b"
    assert planned.plan.orders == pinned({shard: "b"})
    assert counts(planned) == {"a": 32, "b": 32}
    later = plan(nodes("a"), planned.plan, 64)
    assert later.plan.owners[shard] == "a"
    back = plan(nodes("a", "b"), later.plan, 64)
    assert back.plan.owners[shard] == "b"


def test_more_pins_than_a_fair_share_are_kept_and_the_rest_is_shared() -> None:
    pins = dict.fromkeys(range(40), "a")
    planned = plan(nodes("a", "b", "c"), None, 64, orders=pinned(pins))
    assert counts(planned) == {"a": 40, "b": 12, "c": 12}


def test_lifting_a_pin_alone_is_a_new_version() -> None:
    previous = plan(nodes("a", "b"), None, 8, orders=pinned({1: "b"})).plan
    planned = plan(nodes("a", "b"), previous, 8, orders=Orders())
    assert planned.changed
    assert planned.plan.version == previous.version + 1
    assert planned.plan.orders == Orders()


def test_shards_of_nodes_on_hold_stay_with_them() -> None:
    previous = plan(nodes("a", "b", "c"), None, 63).plan
    held = plan(nodes("a"), previous, 63, hold={"b", "c"})
    assert held.plan is previous
    partly = plan(nodes("a"), previous, 63, hold={"b"})
    assert counts(partly) == {"a": 42, "b": 21}


def test_hot_shards_are_spread() -> None:
    weights = {0: 50.0, 1: 50.0, 2: 50.0, 3: 50.0}
    planned = plan(nodes("a", "b"), None, 16, weights=weights)
    assert Counter(planned.plan.owners[shard] for shard in weights) == {"a": 2, "b": 2}


def test_a_hot_node_swaps_with_a_cold_one_without_upsetting_counts() -> None:
    previous = stored({shard: "a" if shard < 8 else "b" for shard in range(16)}, 16)
    weights = {0: 50.0, 1: 50.0, 2: 50.0, 3: 50.0}
    planned = plan(nodes("a", "b"), previous, 16, weights=weights)
    assert Counter(planned.plan.owners[shard] for shard in weights) == {"a": 2, "b": 2}
    assert len(planned.moves) == 4
    assert counts(planned) == {"a": 8, "b": 8}


def test_small_differences_of_load_move_nothing() -> None:
    previous = stored({shard: "a" if shard < 8 else "b" for shard in range(16)}, 16)
    weights = {shard: 1.1 if shard < 8 else 1.0 for shard in range(16)}
    assert not plan(nodes("a", "b"), previous, 16, weights=weights).changed


def test_another_number_of_shards_is_refused() -> None:
    with pytest.raises(ShardCountMismatch) as caught:
        plan(nodes("a"), stored({}, 64), 128)
    assert (caught.value.configured, caught.value.planned) == (128, 64)


@pytest.mark.parametrize("shards", [0, -1, 1025])
def test_bad_shard_counts_are_refused(shards: int) -> None:
    with pytest.raises(InvalidSetting, match="shards"):
        plan(nodes("a"), None, shards)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e13])
def test_bad_weights_are_refused(weight: float) -> None:
    with pytest.raises(InvalidSetting, match="weights"):
        plan(nodes("a"), None, 4, weights={2: weight})


def test_pins_of_shards_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="pins"):
        plan(nodes("a"), None, 4, orders=pinned({4: "a"}))


def test_a_drained_node_gives_everything_away_even_while_paused() -> None:
    previous = plan(nodes("a", "b"), None, 64).plan
    planned = plan(nodes("a", "b"), previous, 64, orders=Orders(drained=frozenset({"b"}), paused=True))
    assert counts(planned) == {"a": 64}
    assert {move.cause for move in planned.moves} == {MoveCause.DRAIN}


def test_an_eviction_is_of_one_process_not_of_the_name() -> None:
    previous = plan(nodes("a", "b"), None, 64).plan
    orders = Orders(evicted={"b": Eviction(incarnation=1, session=9)})
    planned = plan(nodes("a", "b"), previous, 64, orders=orders)
    assert counts(planned) == {"a": 64}
    assert {move.cause for move in planned.moves} == {MoveCause.EVICT}
    successor = Member(node="b", incarnation=2)
    assert counts(plan([node("a"), successor], planned.plan, 64)) == {"a": 32, "b": 32}


def test_nobody_holds_the_shards_of_an_evicted_or_drained_node_for_it() -> None:
    previous = plan(nodes("a", "b", "c"), None, 63).plan
    orders = Orders(evicted={"b": Eviction(incarnation=1, session=9)}, drained=frozenset({"c"}))
    assert counts(plan(nodes("a"), previous, 63, orders=orders, hold={"b", "c"})) == {"a": 63}


def test_drained_and_evicted_nodes_serve_not_even_if_there_is_no_other() -> None:
    previous = plan(nodes("a", "b"), None, 4).plan
    orders = Orders(evicted={"b": Eviction(incarnation=1, session=9)}, drained=frozenset({"a"}))
    assert plan(nodes("a", "b"), previous, 4, orders=orders).plan.owners == {}


def test_a_moved_shard_moves_once_and_another_goes_the_other_way() -> None:
    previous = plan(nodes("a", "b"), None, 64).plan
    shard = min(previous.shards_of("a"))
    planned = plan(nodes("a", "b"), previous, 64, moves={shard: "b"}, max_moves=1)
    assert [(move.shard, move.cause) for move in planned.moves if move.target == "b"] == [(shard, MoveCause.ORDER)]
    assert [move.cause for move in planned.moves if move.target == "a"] == [MoveCause.BALANCE]
    assert planned.plan.orders == Orders()
    assert not plan(nodes("a", "b"), planned.plan, 64).changed


# Properties.


@unhurried
@given(situations(), loads, pinnings, st.one_of(st.none(), st.integers(0, 10)))
def test_every_shard_has_a_serving_owner_if_there_is_one(
    situation: tuple[list[Member], Plan | None, int],
    weights: dict[int, float],
    pins: dict[int, str],
    max_moves: int | None,
) -> None:
    everyone, previous, shards = situation
    pins = {shard: pin for shard, pin in pins.items() if shard < shards}
    planned = plan(everyone, previous, shards, weights=weights, orders=pinned(pins), max_moves=max_moves)
    up = {member.node for member in everyone if member.state is UP}
    serving = up or {member.node for member in everyone if member.state is UNHEALTHY}
    if serving:
        assert set(planned.plan.owners) == set(range(shards))
        assert set(planned.plan.owners.values()) <= serving
    else:
        assert planned.plan.owners == {}
    for shard, pin in pins.items():
        assert pin not in serving or planned.plan.owners[shard] == pin


@unhurried
@given(situations(), loads, pinnings)
def test_planning_again_changes_nothing(
    situation: tuple[list[Member], Plan | None, int], weights: dict[int, float], pins: dict[int, str]
) -> None:
    everyone, previous, shards = situation
    pins = {shard: pin for shard, pin in pins.items() if shard < shards}
    first = plan(everyone, previous, shards, weights=weights, orders=pinned(pins))
    again = plan(everyone, first.plan, shards, weights=weights)
    assert again.moves == ()
    assert again.plan is first.plan


@unhurried
@given(situations(up_members), loads)
def test_each_node_has_its_fair_share_rounded_down_or_up(
    situation: tuple[list[Member], Plan | None, int], weights: dict[int, float]
) -> None:
    everyone, previous, shards = situation
    have = counts(plan(everyone, previous, shards, weights=weights))
    total = sum(member.weight for member in everyone)
    for member in everyone:
        assert abs(have.get(member.node, 0) - Fraction(shards * member.weight, total)) < 1


@unhurried
@given(situations(up_members))
def test_equal_nodes_differ_by_at_most_one_shard_after_the_fewest_moves(
    situation: tuple[list[Member], Plan | None, int],
) -> None:
    everyone, previous, shards = situation
    everyone = [replace(member, weight=1) for member in everyone]
    planned = plan(everyone, previous, shards)
    have = [counts(planned).get(member.node, 0) for member in everyone]
    assert max(have) - min(have) <= 1
    assert len(planned.moves) == fewest_moves(previous, [member.node for member in everyone], shards)


def fewest_moves(previous: Plan | None, up: list[str], shards: int) -> int:
    """Shards without a living owner, plus the least excess over any choice of who has one shard more."""
    owners = previous.owners if previous is not None else {}
    before = Counter(owner for owner in owners.values() if owner in up)
    orphans = shards - sum(before.values())
    low, extra = divmod(shards, len(up))
    excess = min(
        sum(max(0, before[name] - low - (name in more)) for name in up) for more in itertools.combinations(up, extra)
    )
    return orphans + excess


@unhurried
@given(situations(), loads, pinnings, st.one_of(st.none(), st.integers(0, 10)), st.randoms())
def test_the_order_of_members_and_mappings_does_not_matter(
    situation: tuple[list[Member], Plan | None, int],
    weights: dict[int, float],
    pins: dict[int, str],
    max_moves: int | None,
    chance: random.Random,
) -> None:
    everyone, previous, shards = situation
    pins = {shard: pin for shard, pin in pins.items() if shard < shards}
    planned = plan(everyone, previous, shards, weights=weights, orders=pinned(pins), max_moves=max_moves)
    if previous is not None:
        previous = replace(previous, owners=shuffled(previous.owners, chance))
    again = plan(
        shuffled(dict.fromkeys(everyone, 0), chance),
        previous,
        shards,
        weights=shuffled(weights, chance),
        orders=pinned(shuffled(pins, chance)),
        max_moves=max_moves,
    )
    assert again.plan == planned.plan
    assert again.moves == planned.moves


def shuffled(mapping: Mapping[K, V], chance: random.Random) -> dict[K, V]:
    items = list(mapping.items())
    chance.shuffle(items)
    return dict(items)


@unhurried
@given(situations(), loads, st.integers(0, 10))
def test_moves_say_what_changed_and_balance_keeps_to_its_limit(
    situation: tuple[list[Member], Plan | None, int], weights: dict[int, float], max_moves: int
) -> None:
    everyone, previous, shards = situation
    planned = plan(everyone, previous, shards, weights=weights, max_moves=max_moves)
    owners = dict(previous.owners) if previous is not None else {}
    for move in planned.moves:
        assert owners.get(move.shard) == move.source != move.target
        if move.target is None:
            owners.pop(move.shard)
        else:
            owners[move.shard] = move.target
    assert owners == planned.plan.owners
    assert sum(move.cause is MoveCause.BALANCE for move in planned.moves) <= max_moves
