"""Page tokens."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from server.api.page_token import decode_token, encode_token

FILTERS = ["default", "h", [1, 2], {"a": "b"}, 0, None, [5, 6]]


@given(st.integers(1, 2**63 - 1))
def test_a_token_gives_its_cursor_back(cursor: int) -> None:
    assert decode_token(encode_token(cursor, FILTERS), FILTERS) == cursor


def test_the_order_of_labels_does_not_matter() -> None:
    token = encode_token(5, [{"a": "1", "b": "2"}])
    assert decode_token(token, [{"b": "2", "a": "1"}]) == 5


@given(st.integers(0, len(FILTERS) - 1))
def test_other_filters_do_not_take_it(position: int) -> None:
    other = [*FILTERS]
    other[position] = "something else"
    assert decode_token(encode_token(5, FILTERS), other) is None


@given(st.integers(0, 20), st.integers(1, 255))
def test_a_damaged_token_is_noticed(position: int, change: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(encode_token(5, FILTERS)))
    raw[position] ^= change
    assert decode_token(base64.urlsafe_b64encode(bytes(raw)).decode(), FILTERS) is None


@given(st.text())
def test_any_text_is_read_without_harm(text: str) -> None:
    assert decode_token(text, FILTERS) is None
