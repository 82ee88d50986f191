"""JSON from and to typed values."""

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_sdk import ConfigurationError, JsonCodec, PayloadError
from worker_sdk.codec import encode_value, payload_decoder
from worker_sdk.json_text import dump_json, load_json
from worker_sdk.json_types import compile_decoder


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


CustomerId = NewType("CustomerId", int)


@dataclass(frozen=True)
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: CustomerId
    items: list[Item]
    color: Color | None = None
    notes: dict[str, str] = field(default_factory=dict)
    price: Decimal = Decimal(0)
    at: datetime | None = None
    parent: "Order | None" = None

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("id is negative")


class Mail(TypedDict):
    to: Required[str]
    cc: NotRequired[list[str]]
    urgent: bool


def decode(annotation: object, value: object) -> object:
    return compile_decoder(annotation)(value, "payload")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 3), (float, 2.5), (str, "é"), (bool, True), (None, None), (bytes, b"\x00\xff"), (Any, {"a": [1, None]}),
        (datetime, datetime(2026, 3, 8, 7, tzinfo=UTC)), (date, date(2026, 2, 28)), (time, time(12, 30)),
        (timedelta, timedelta(seconds=90.5)), (Decimal, Decimal("1.10")), (Color, Color.BLUE),
        (uuid.UUID, uuid.UUID(int=7)), (list[int], [1, 2]), (Sequence[str], ["a"]), (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})), (tuple[int, str], (1, "a")), (tuple[int, ...], (1, 2, 3)),
        (tuple, (1, "a")), (dict, {"a": 1}),
        (dict[str, float], {"a": 1.0}), (dict[int, str], {1: "a"}), (Mapping[Color, int], {Color.RED: 1}),
        (Literal["a", 1], 1), (int | None, None), (int | str, "a"), (Annotated[int, "positive"], 5),
        (Item, Item("x", 2)), (Mail, {"to": "a", "urgent": False}),
        (Order, Order(CustomerId(1), [Item("x")], Color.RED, {"a": "b"}, Decimal("9.9"))),
        (Order, Order(CustomerId(1), [], parent=Order(CustomerId(2), []))),
    ],
)  # fmt: skip
def test_values_survive_the_round_trip(annotation: object, value: object) -> None:
    keys = {key.value: inner for key, inner in value.items()} if annotation == Mapping[Color, int] else value  # type: ignore[attr-defined]
    assert decode(annotation, load_json(dump_json(keys))) == value


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, True, "payload: True is not an integer"),
        (int, 1.0, "payload: 1.0 is not an integer"),
        (float, "1", "is not a number"),
        (bool, 0, "is not true or false"),
        (str, None, "payload: None is not a string"),
        (bytes, "no base64!", "is not base64"),
        (datetime, "yesterday", "is not an ISO 8601 date and time"),
        (timedelta, 1e300, "span of time that Python can hold"),
        (Decimal, "x", "is not a decimal number"),
        (Color, "green", "is not one of ['red', 'blue']"),
        (Literal["a", 1], True, "is not one of ['a', 1]"),
        (list[int], [1, "x"], "payload[1]: 'x' is not an integer"),
        (tuple[int, str], [1], "is not a list of 2"),
        (dict[str, int], {"a": None}, "payload.a: None is not an integer"),
        (dict[int, str], {"a": "b"}, "is not an integer in a key"),
        (int | None, "x", "no member of int | None fits"),
        (Mail, {"to": "a"}, "payload.urgent: is missing"),
        (Mail, {"to": "a", "urgent": True, "cc": [1]}, "payload.cc[0]: 1 is not a string"),
        (Mail, [], "is not an object"),
        (Item, {"count": 3}, "payload.sku: is missing"),
        (Order, {"id": 1, "items": [{"sku": 1}]}, "payload.items[0].sku: 1 is not a string"),
        (Order, {"id": -1, "items": []}, "payload: Order refuses the values: id is negative"),
        (str, ["x" * 200], "..."),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(annotation: object, value: object, message: str) -> None:
    with pytest.raises(PayloadError) as caught:
        decode(annotation, value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_unknown_keys_are_ignored_and_missing_ones_take_their_default() -> None:
    assert decode(Item, {"sku": "x", "new": 1}) == Item("x")
    assert decode(Mail, {"to": "a", "urgent": True, "new": 1}) == {"to": "a", "urgent": True}


@pytest.mark.parametrize("annotation", [complex, type, dict[str, complex], Item | complex, lambda: None])
def test_unsupported_types_are_refused_when_they_are_declared(annotation: object) -> None:
    with pytest.raises(ConfigurationError, match="not supported"):
        compile_decoder(annotation)


@pytest.mark.parametrize("value", [object(), {1: {2}, "x": object()}, float("nan"), {(1, 2): 3}])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises(PayloadError):
        dump_json(value)


def test_lone_surrogates_and_deep_nesting_do_no_harm() -> None:
    assert load_json(dump_json("\ud800")) == "\ud800"
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(PayloadError):
        dump_json(nested)
    with pytest.raises(PayloadError):
        load_json(b"[" * 100_000)
    with pytest.raises(PayloadError):
        load_json(b"\xff\xfe")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_any_json_value_survives_the_round_trip(value: object) -> None:
    assert load_json(dump_json(value)) == value


def test_bytes_pass_by_the_codec_and_none_is_no_bytes() -> None:
    codec = JsonCodec()
    assert encode_value(codec, b"\x00") == (b"\x00", "application/octet-stream")
    assert encode_value(codec, bytearray(b"a")) == (b"a", "application/octet-stream")
    assert encode_value(codec, None) == (b"", "")
    assert encode_value(codec, [1]) == (b"[1]", "application/json")
    as_bytes = payload_decoder(codec, bytes, annotated=True)
    assert as_bytes(b"{}", "application/json") == b"{}"


def test_without_annotation_the_content_type_decides() -> None:
    any_payload = payload_decoder(JsonCodec(), Any, annotated=False)
    assert any_payload(b'{"a":1}', "application/json") == {"a": 1}
    assert any_payload(b"\x00\x01", "application/octet-stream") == b"\x00\x01"
    assert any_payload(b"", "") is None
    assert any_payload(b"5", "") == 5
    optional = payload_decoder(JsonCodec(), int | None, annotated=True)
    assert optional(b"", "") is None
