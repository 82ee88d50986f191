"""The plan as text."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_manager.coordinator import MAX_SHARDS, Plan
from shard_manager.errors import PlanCorrupt
from shard_manager.orders import Eviction, Orders, Pin
from shard_manager.plan_codec import decode, encode

unhurried = settings(deadline=None)
numbers = st.integers(0, 2**63 - 1)
ends = st.none() | st.datetimes(timezones=st.just(UTC))
nodes = st.sampled_from(["a", "node-2", "10.0.0.1:7400", "ü"])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    shards = draw(st.integers(1, MAX_SHARDS))
    owners = draw(st.dictionaries(st.integers(0, shards - 1), nodes, max_size=200))
    return Plan(
        version=draw(st.integers(1, 2**63 - 1)),
        shards=shards,
        owners=owners,
        orders=Orders(
            paused=draw(st.booleans()),
            pins=draw(st.dictionaries(st.integers(0, shards - 1), st.builds(Pin, node=nodes, until=ends), max_size=5)),
            drained=draw(st.frozensets(nodes)),
            evicted=draw(st.dictionaries(nodes, st.builds(Eviction, incarnation=numbers, session=numbers))),
        ),
        leader=draw(nodes),
        reason=draw(st.text(max_size=20)),
    )


@unhurried
@given(plans())
def test_a_plan_survives_the_way_there_and_back(plan: Plan) -> None:
    assert decode(encode(plan)) == plan


def test_the_text_is_compact_and_stable() -> None:
    owners = {shard: "b" if shard in (3, 7) else "a" for shard in range(9)}
    orders = Orders(pins={3: Pin(node="b")})
    plan = Plan(version=2, shards=9, owners=owners, orders=orders, leader="a", reason="drain 2")
    assert encode(plan) == (
        '{"format":1,"leader":"a","owners":{"a":"0-2,4-6,8","b":"3,7"},"paused":false,"pins":{"3":"b"},'
        '"reason":"drain 2","shards":9,"version":2}'
    )


def test_the_largest_plan_is_small() -> None:
    owners = {shard: f"node-{shard % 50:02}" for shard in range(MAX_SHARDS)}
    assert len(encode(Plan(version=1, shards=MAX_SHARDS, owners=owners))) < 20_000


def test_orders_have_a_text_of_their_own_and_may_be_missing() -> None:
    """A plan of a release without them has none."""
    assert decode(json.dumps(GOOD)).orders == Orders()
    until = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    orders = Orders(
        paused=True,
        pins={1: Pin(node="b", until=until)},
        drained=frozenset({"c"}),
        evicted={"d": Eviction(incarnation=7, session=8)},
    )
    document = {
        "paused": True,
        "pins": {"1": "b"},
        "pin_ends": {"1": "2030-01-02T03:04:05+00:00"},
        "drained": ["c"],
        "evicted": {"d": [7, 8]},
    }
    assert decode(json.dumps(GOOD | document)).orders == orders
    assert json.loads(encode(replace(decode(json.dumps(GOOD)), orders=orders))) == GOOD | document


GOOD = {
    "format": 1,
    "version": 1,
    "shards": 8,
    "owners": {"a": "0-7"},
    "pins": {},
    "paused": False,
    "leader": "a",
    "reason": "",
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format 2"),
        ({"version": 0}, "version"),
        ({"version": True}, "version"),
        ({"shards": 1025}, "shards"),
        ({"owners": {"a": "0-8"}}, "'8' is not a shard"),
        ({"owners": {"a": "5-3"}}, "backwards"),
        ({"owners": {"a": "0-3", "b": "3"}}, "two owners"),
        ({"owners": {"a": ""}}, "'' is not a shard"),
        ({"owners": {"a": "-1"}}, "not a shard"),
        ({"owners": {"a": "²"}}, "not a shard"),
        ({"owners": {"a": "9" * 5000}}, "not a shard"),
        ({"owners": {"a": [1]}}, "other than text"),
        ({"owners": []}, "owners"),
        ({"pins": {"x": "a"}}, "not a shard"),
        ({"pins": None}, "pins"),
        ({"paused": 0}, "paused"),
        ({"pin_ends": {"1": "soon"}}, "'soon' is not an instant"),
        ({"pin_ends": {"8": "2030-01-01T00:00:00+00:00"}}, "not a shard"),
        ({"drained": "a"}, "drained"),
        ({"drained": [1]}, "name of a node"),
        ({"evicted": ["a"]}, "evicted"),
        ({"evicted": {"a": 1}}, "an incarnation and a session"),
        ({"evicted": {"a": [1, -1]}}, "evicted"),
        ({"leader": None}, "leader"),
        ({"reason": 1}, "reason"),
    ],
)
def test_anything_else_is_refused_with_a_reason(change: dict[str, object], reason: str) -> None:
    assert decode(json.dumps(GOOD)).owners == dict.fromkeys(range(8), "a")
    with pytest.raises(PlanCorrupt, match=reason):
        decode(json.dumps(GOOD | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff\xfe", "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(PlanCorrupt):
        decode(text)
