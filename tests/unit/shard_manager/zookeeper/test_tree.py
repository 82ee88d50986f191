"""Paths, and what znodes hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_manager.coordinator import Member, MemberState
from shard_manager.zookeeper.tree import (
    Tree,
    Unreadable,
    candidate_node,
    candidate_number,
    decode_member,
    encode_lease,
    encode_member,
    lease_generation,
)

NODES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", fullmatch=True)


@given(NODES, st.integers(0, 2**31 - 1))
def test_a_candidate_tells_its_node_and_its_place(node: str, number: int) -> None:
    name = f"{node}-{number:010d}"
    assert candidate_node(name) == node
    assert candidate_number(name) == number


@given(
    st.builds(
        Member,
        node=NODES,
        incarnation=st.integers(1, 2**63 - 1),
        state=st.sampled_from(MemberState),
        weight=st.integers(1, 1000),
        address=st.text(max_size=50).filter(str.isprintable),
    ),
    st.floats(0.1, 60),
)
def test_a_member_comes_back_as_it_was_written(member: Member, ttl_s: float) -> None:
    assert decode_member(member.node, encode_member(member, ttl_s)) == (member, ttl_s)


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b"\xff", b"3", b'{"incarnation": 0}'])
def test_a_member_that_is_something_else_is_told_of(data: bytes) -> None:
    with pytest.raises(Unreadable, match="member a"):
        decode_member("a", data)


def test_a_lease_tells_its_generation() -> None:
    assert lease_generation(encode_lease(7, "node a 9")) == 7
    for data in (b"", b"node"):
        with pytest.raises(Unreadable):
            lease_generation(data)


def test_parents_come_before_what_is_in_them() -> None:
    tree = Tree("/a/b/c")
    assert tree.folders() == ["/a", "/a/b", "/a/b/c", "/a/b/c/members", "/a/b/c/candidates", "/a/b/c/leases"]
    assert tree.lease(7) == "/a/b/c/leases/0007"
