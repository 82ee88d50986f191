"""The split of slots among nodes."""

import dataclasses
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.thoroughness import examples
from worker_sdk.credit import CreditBook, Grant, split

NODES = ("a", "b", "c")


def test_free_slots_go_to_where_jobs_wait_and_the_rest_is_spread() -> None:
    assert split(6, {"a": 0}, {}, 0) == {"a": 6}
    assert split(6, {"a": 0, "b": 0, "c": 0}, {}, 0) == {"a": 2, "b": 2, "c": 2}
    assert split(7, {"a": 0, "b": 0, "c": 0}, {}, 0) == {"a": 3, "b": 2, "c": 2}
    assert split(6, {"a": 0, "b": 0, "c": 0}, {"b": 50}, 0) == {"a": 0, "b": 6, "c": 0}
    assert split(6, {"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 50}, 0) == {"a": 1, "b": 5, "c": 0}
    assert split(6, {"a": 4, "b": 0}, {"a": 9, "b": 9}, 0) == {"a": 5, "b": 1}
    assert split(6, {"a": 5, "b": 3}, {"a": 9}, 0) == {"a": 5, "b": 3}
    assert split(6, {}, {}, 0) == {}


def test_a_single_slot_goes_round_among_nodes_that_want_it() -> None:
    owners = [max((shares := split(1, dict.fromkeys(NODES, 0), dict.fromkeys(NODES, 9), turn)), key=shares.__getitem__)
              for turn in range(6)]  # fmt: skip
    assert owners == ["a", "b", "c", "a", "b", "c"]


@given(
    limit=st.integers(0, 50),
    used=st.dictionaries(st.sampled_from(NODES), st.integers(0, 20), min_size=1),
    demand=st.dictionaries(st.sampled_from(NODES), st.integers(0, 100)),
    turn=st.integers(0, 1000),
)
def test_every_slot_is_given_and_none_twice(
    limit: int, used: dict[str, int], demand: dict[str, int], turn: int
) -> None:
    shares = split(limit, used, demand, turn)
    assert shares.keys() == used.keys()
    assert all(shares[node] >= used[node] for node in used)
    assert sum(shares.values()) == max(limit, sum(used.values()))
    # Nobody has more than it wants while another wants more.
    spare = [node for node in used if shares[node] > used[node] + demand.get(node, 0)]
    short = [node for node in used if shares[node] < used[node] + demand.get(node, 0)]
    assert not (spare and short)


@dataclasses.dataclass
class Node:
    """What a node believes, and what is on its way to it."""

    credit: int = 0
    arriving: list[Grant] = dataclasses.field(default_factory=list)
    acks: list[int] = dataclasses.field(default_factory=list)


class Slots(RuleBasedStateMachine):
    """Nodes hand out jobs on what they believe; messages are delayed at will, sessions break, jobs end."""

    LIMIT = 5

    def __init__(self) -> None:
        super().__init__()
        self.book = CreditBook({"h": self.LIMIT})
        self.nodes: dict[str, Node] = {}
        self.running: Counter[tuple[str, str]] = Counter()
        self.drained: set[str] = set()
        self.turn = 0

    def exchange(self) -> None:
        for grant in self.book.grants(self.running, {}, self.turn):
            self.nodes[grant.node].arriving.append(grant)

    @rule(node=st.sampled_from(NODES))
    def join(self, node: str) -> None:
        if node not in self.nodes:
            self.nodes[node] = Node()
            self.book.join(node)
            self.exchange()

    @rule(node=st.sampled_from(NODES))
    def leave(self, node: str) -> None:
        if self.nodes.pop(node, None):
            self.drained.discard(node)
            self.book.leave(node)
            self.exchange()

    @rule(node=st.sampled_from(NODES), waiting=st.integers(0, 9))
    def demand(self, node: str, waiting: int) -> None:
        self.book.set_demand(node, {"h": waiting})
        self.exchange()

    @rule(node=st.sampled_from(NODES))
    def credit_arrives(self, node: str) -> None:
        if node in self.nodes and self.nodes[node].arriving:
            grant = self.nodes[node].arriving.pop(0)
            self.nodes[node].credit = grant.slots["h"]
            self.nodes[node].acks.append(grant.sequence)

    @rule(node=st.sampled_from(NODES))
    def ack_arrives(self, node: str) -> None:
        if node in self.nodes and self.nodes[node].acks:
            self.book.acknowledge(node, self.nodes[node].acks.pop(0))
            self.exchange()

    @rule(node=st.sampled_from(NODES))
    def hand_out(self, node: str) -> None:
        if node in self.nodes and self.nodes[node].credit > self.running[node, "h"]:
            self.running[node, "h"] += 1

    @rule(node=st.sampled_from(NODES))
    def finish(self, node: str) -> None:
        if self.running[node, "h"]:
            self.running[node, "h"] -= 1
            self.exchange()

    @rule(old=st.sampled_from(NODES), new=st.sampled_from(NODES))
    def take_over(self, old: str, new: str) -> None:
        # A job of a lost node's shard becomes another node's.
        if old not in self.nodes and new in self.nodes and self.running[old, "h"]:
            self.running[old, "h"] -= 1
            self.running[new, "h"] += 1
            self.exchange()

    @rule(node=st.sampled_from(NODES))
    def drain(self, node: str) -> None:
        if node in self.nodes:
            self.drained.add(node)
            self.book.drain(node)
            self.exchange()

    @rule()
    def time_passes(self) -> None:
        self.turn += 1
        self.exchange()

    @invariant()
    def never_more_than_there_are(self) -> None:
        assert sum(self.running.values()) <= self.LIMIT

    @precondition(lambda self: bool(self.nodes))
    @rule()
    def everything_arrives(self) -> None:
        """When nothing is under way, every slot that can be given is given."""
        for _ in range(20):
            for node, state in self.nodes.items():
                for grant in state.arriving:
                    state.credit = grant.slots["h"]
                    state.acks.append(grant.sequence)
                for sequence in state.acks:
                    self.book.acknowledge(node, sequence)
                state.arriving.clear()
                state.acks.clear()
            self.exchange()
        assert not any(state.arriving for state in self.nodes.values())
        open_nodes = [node for node in self.nodes if node not in self.drained]
        elsewhere = sum(count for (node, _), count in self.running.items() if node not in open_nodes)
        used = sum(self.running[node, "h"] for node in open_nodes)
        if open_nodes:
            assert sum(self.nodes[node].credit for node in open_nodes) == max(self.LIMIT - elsewhere, used)


Slots.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestSlots = Slots.TestCase


def test_handlers_do_not_share_slots() -> None:
    book = CreditBook({"x": 2, "y": 3})
    book.join("a")
    (grant,) = book.grants({}, {}, 0)
    assert dict(grant.slots) == {"x": 2, "y": 3}
    assert book.grants({}, {}, 0) == []
    # An attempt that nobody counts any more still occupies its slot.
    (grant,) = book.grants({}, {"x": 1}, 0)
    assert dict(grant.slots) == {"x": 1}
    book.close()
    (grant,) = book.grants({}, {}, 0)
    assert dict(grant.slots) == {"x": 0, "y": 0}
