"""Paths below the chroot, and what the small znodes hold."""

import json
from dataclasses import dataclass
from typing import Final

from shard_manager.coordinator import Member, MemberState
from shard_manager.errors import InvalidSetting

FORMAT: Final = 1
_NUMBER_DIGITS: Final = 10


class Unreadable(Exception):
    """A znode holds something that this version does not understand."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The znodes of one cluster, by what they are for."""

    root: str

    @property
    def meta(self) -> str:
        return f"{self.root}/meta"

    @property
    def members(self) -> str:
        return f"{self.root}/members"

    @property
    def candidates(self) -> str:
        return f"{self.root}/candidates"

    @property
    def leases(self) -> str:
        return f"{self.root}/leases"

    @property
    def plan(self) -> str:
        return f"{self.root}/plan"

    def member(self, node: str) -> str:
        return f"{self.members}/{node}"

    def candidate(self, name: str) -> str:
        return f"{self.candidates}/{name}"

    def lease(self, shard: int) -> str:
        return f"{self.leases}/{shard:04d}"

    def folders(self) -> list[str]:
        """All persistent znodes without data, parents first."""
        parts = self.root.split("/")
        parents = ["/".join(parts[:length]) for length in range(2, len(parts) + 1)]
        return [*parents, self.members, self.candidates, self.leases]


def candidate_number(name: str) -> int:
    """The place of a candidate in the line; ZooKeeper appends ten digits."""
    return int(name[-_NUMBER_DIGITS:])


def candidate_node(name: str) -> str:
    """The node that a candidate stands for."""
    return name[: -_NUMBER_DIGITS - 1]


def encode_member(member: Member, ttl_s: float) -> bytes:
    """Write what a member znode says; its name is the node's."""
    document = {
        "format": FORMAT,
        "incarnation": member.incarnation,
        "state": member.state.value,
        "weight": member.weight,
        "address": member.address,
        "ttl_s": ttl_s,
    }
    return json.dumps(document, sort_keys=True).encode()


def decode_member(node: str, data: bytes) -> tuple[Member, float]:
    """Read what `encode_member` wrote. Raises `Unreadable`."""
    try:
        document = json.loads(data)
        member = Member(
            node=node,
            incarnation=int(document["incarnation"]),
            state=MemberState(document["state"]),
            weight=int(document["weight"]),
            address=str(document["address"]),
        )
        return member, float(document["ttl_s"])
    except (ValueError, KeyError, TypeError, RecursionError, InvalidSetting) as error:
        raise Unreadable(f"member {node}: {error}") from error


def encode_lease(generation: int, node: str) -> bytes:
    """Write what a lease znode says."""
    return f"{generation} {node}".encode()


def lease_generation(data: bytes) -> int:
    """The generation that a lease was granted in. Raises `Unreadable`."""
    try:
        return int(data.split(b" ", 1)[0])
    except ValueError as error:
        raise Unreadable(f"lease: {data[:40]!r}") from error
