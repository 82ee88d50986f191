"""Rights in namespaces: what they are called, and what they let their holder do."""

from itertools import product

import pytest

from server.domain.access import ANYBODY, EVERYWHERE, Principal, Right, Scope, parse_scopes
from server.domain.errors import InvalidInput


def test_scopes_are_read_as_they_are_written() -> None:
    scopes = parse_scopes(["billing:submit,read", "*:work", "billing:read"])
    assert [str(scope) for scope in scopes] == ["billing:submit", "billing:read", "*:work"]
    assert parse_scopes([str(scope) for scope in scopes]) == scopes


@pytest.mark.parametrize(
    "text",
    ["", "billing", "billing:", ":read", "billing:write", "Billing:read", "a b:read", "**:read", "a:read,", "a:b:read"],
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_scopes([text])
    assert refused.value.field == "scopes"


@pytest.mark.parametrize("count", [0, 101])
def test_there_are_one_to_a_hundred(count: int) -> None:
    with pytest.raises(InvalidInput, match="takes 1 to 100"):
        parse_scopes([f"n{number}:read" for number in range(count)])


def test_a_right_is_good_where_it_is_held_and_admin_has_all_others_in_it() -> None:
    for held, place, asked, namespace in product(Right, ("a", EVERYWHERE), Right, ("a", "b", EVERYWHERE)):
        principal = Principal(scopes=frozenset({Scope(place, held)}))
        covers_right = held in (asked, Right.ADMIN)
        covers_place = place in (namespace, EVERYWHERE)
        assert principal.may(asked, namespace) is (covers_right and covers_place), (held, place, asked, namespace)


def test_who_has_no_scope_may_nothing_and_nodes_everything() -> None:
    for right, namespace in product(Right, ("a", EVERYWHERE)):
        assert not Principal(name="token:x").may(right, namespace)
        assert Principal(name="node:a", node=True).may(right, namespace)
        assert ANYBODY.may(right, namespace)
