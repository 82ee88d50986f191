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


@given(
    limit=st.integers(0, 50),
    used=st.dictionaries(st.sampled_from(NODES), st.integers(0, 20), min_size=1),
    keep=st.dictionaries(st.sampled_from(NODES), st.integers(0, 50)),
)
def test_idle_slots_stay_where_they_are_as_far_as_there_are_any(
    limit: int, used: dict[str, int], keep: dict[str, int]
) -> None:
    shares = split(limit, used, {}, 0, keep)
    assert sum(shares.values()) == max(limit, sum(used.values()))
    if sum(max(used[one], keep.get(one, 0)) for one in used) <= limit:
        assert all(shares[one] >= keep.get(one, 0) for one in used)


def test_a_slot_is_given_to_a_node_only_when_another_has_let_it_go() -> None:
    book = CreditBook({"h": 4})
    book.join("first")
    [all_of_them] = book.grants({}, {}, 0)
    book.acknowledge("first", all_of_them.sequence)
    book.join("second")
    told = {grant.stream: grant for grant in book.grants({}, {}, 0, spread=True)}
    assert {stream: grant.slots for stream, grant in told.items()} == {"first": {"h": 2}, "second": {"h": 0}}
    assert book.grants({}, {}, 0, spread=True) == []
    book.acknowledge("first", told["first"].sequence)
    assert [(grant.stream, grant.slots) for grant in book.grants({}, {}, 0, spread=True)] == [("second", {"h": 2})]


@dataclasses.dataclass
class Stream:
    """One stream of the worker, what its node believes, and what is on its way both ways, in order."""

    node: str
    credit: int = 0
    outstanding: int = 0
    to_node: list[Grant | None] = dataclasses.field(default_factory=list)
    """Credits; None is a result."""
    to_worker: list[int] = dataclasses.field(default_factory=list)
    """Acknowledged credits; 0 is a job."""


class Slots(RuleBasedStateMachine):
    """Nodes hand out jobs on what they believe; messages are delayed at will, streams break and come back, shards and
    with them attempts get other owners, attempts are superseded and linger, jobs end."""

    LIMIT = 5

    def __init__(self) -> None:
        super().__init__()
        self.book = CreditBook({"h": self.LIMIT})
        self.streams: dict[str, Stream] = {}
        self.running: Counter[tuple[str, str]] = Counter()
        self.lingering = 0
        self.drained: set[str] = set()
        self.opened = 0
        self.turn = 0

    def exchange(self, *, spread: bool = False) -> None:
        for grant in self.book.grants(self.running, {"h": self.lingering}, self.turn, spread=spread):
            self.streams[grant.stream].to_node.append(grant)

    def of_node(self, node: str) -> str | None:
        return next((name for name, stream in self.streams.items() if stream.node == node), None)

    @rule(node=st.sampled_from(NODES))
    def join(self, node: str) -> None:
        """A new stream first discards the old one; what came on that goes on running."""
        self.leave(node)
        self.opened += 1
        name = f"stream-{self.opened}"
        self.streams[name] = Stream(node)
        self.book.join(name)
        self.exchange(spread=True)

    @rule(node=st.sampled_from(NODES))
    def leave(self, node: str) -> None:
        name = self.of_node(node)
        if name is not None:
            del self.streams[name]
            self.drained.discard(name)
            self.book.leave(name)
            self.exchange(spread=True)

    @rule(node=st.sampled_from(NODES), waiting=st.integers(0, 9))
    def demand(self, node: str, waiting: int) -> None:
        name = self.of_node(node)
        if name is not None:
            self.book.set_demand(name, {"h": waiting})
            self.exchange()

    @rule(node=st.sampled_from(NODES))
    def node_reads(self, node: str) -> None:
        name = self.of_node(node)
        if name is not None and self.streams[name].to_node:
            self.take_in(self.streams[name])

    def take_in(self, stream: Stream) -> None:
        message = stream.to_node.pop(0)
        if message is None:
            stream.outstanding -= 1
        else:
            stream.credit = message.slots["h"]
            stream.to_worker.append(message.sequence)

    @rule(node=st.sampled_from(NODES), jobs=st.integers(1, 5))
    def node_hands_out(self, node: str, jobs: int = 1) -> None:
        name = self.of_node(node)
        if name is not None:
            jobs = min(jobs, self.streams[name].credit - self.streams[name].outstanding)
            self.streams[name].outstanding += max(jobs, 0)
            self.streams[name].to_worker += [0] * jobs

    @rule(node=st.sampled_from(NODES))
    def worker_reads(self, node: str) -> None:
        name = self.of_node(node)
        if name is not None and self.streams[name].to_worker:
            self.hear(name)

    def hear(self, name: str) -> None:
        sequence = self.streams[name].to_worker.pop(0)
        if sequence:
            self.book.acknowledge(name, sequence)
            self.exchange()
        else:
            self.book.served(name, "h", 1)
            self.running[name, "h"] += 1

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Whoever owns the shard by now: the result goes where the job came from, if that stream lives."""
        there = sorted(name for (name, _), count in self.running.items() if count)
        if there:
            name = data.draw(st.sampled_from(there))
            self.running[name, "h"] -= 1
            if name in self.streams:
                self.streams[name].to_node.append(None)
            self.exchange()

    @rule(data=st.data())
    def worker_is_slow_to_stop(self, data: st.DataObject) -> None:
        """An attempt of a stream that is gone is superseded: nobody awaits its result, but its handler still runs."""
        there = sorted(name for (name, _), count in self.running.items() if count and name not in self.streams)
        if there:
            self.running[data.draw(st.sampled_from(there)), "h"] -= 1
            self.lingering += 1
            self.exchange()

    @rule()
    def stopped_at_last(self) -> None:
        if self.lingering:
            self.lingering -= 1
            self.exchange()

    @rule(node=st.sampled_from(NODES))
    def drain(self, node: str) -> None:
        name = self.of_node(node)
        if name is not None:
            self.drained.add(name)
            self.book.drain(name)
            self.exchange(spread=True)

    @rule()
    def time_passes(self) -> None:
        self.turn += 1
        self.exchange(spread=True)

    @invariant()
    def never_more_than_there_are(self) -> None:
        """Not even if every job that is under way had arrived."""
        under_way = sum(stream.to_worker.count(0) for stream in self.streams.values())
        assert sum(self.running.values()) + self.lingering + under_way <= self.LIMIT

    def settle(self) -> None:
        """Let everything arrive that is under way."""
        while any(stream.to_node or stream.to_worker for stream in self.streams.values()):
            for name, stream in self.streams.items():
                while stream.to_node:
                    self.take_in(stream)
                while stream.to_worker:
                    self.hear(name)

    @precondition(lambda self: bool(self.streams))
    @rule()
    def everything_arrives(self) -> None:
        """When nothing is under way, every slot that can be given is given, and both ends count the same."""
        self.settle()
        for name, stream in self.streams.items():
            assert stream.outstanding == self.running[name, "h"]
        usable = [name for name in self.streams if name not in self.drained]
        elsewhere = self.lingering + sum(count for (name, _), count in self.running.items() if name not in usable)
        if usable:
            assert sum(self.streams[name].credit for name in usable) == self.LIMIT - elsewhere

    @rule(node=st.sampled_from(NODES))
    def one_node_has_work(self, node: str) -> None:
        """Where jobs wait, and nowhere else, every slot that is free gets busy: no worker idles."""
        name = self.of_node(node)
        if name is None or name in self.drained:
            return
        for other in self.streams:
            self.book.set_demand(other, {})
        self.book.set_demand(name, {"h": 99})
        self.exchange()
        self.settle()
        stream = self.streams[name]
        while stream.outstanding < stream.credit:
            self.node_hands_out(node)
            self.settle()
        assert sum(self.running.values()) + self.lingering == self.LIMIT


Slots.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestSlots = Slots.TestCase


def test_what_came_on_an_older_stream_to_a_node_is_not_counted_by_it() -> None:
    book = CreditBook({"h": 8})
    book.join("first")
    [grant] = book.grants({}, {}, 0)
    book.acknowledge("first", grant.sequence)
    book.leave("first")
    book.join("second")
    [grant] = book.grants({("first", "h"): 6}, {}, 0)
    assert (grant.stream, dict(grant.slots), book.strained) == ("second", {"h": 2}, True)
    [grant] = book.grants({}, {}, 0)
    assert (dict(grant.slots), book.strained) == ({"h": 8}, False)


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


def test_a_modest_stream_gets_slots_only_while_it_asks_for_them() -> None:
    book = CreditBook({"h": 4})
    book.join("node")
    book.join("kafka", modest=True)
    [first] = [grant for grant in book.grants({}, {}, 0) if grant.stream == "node"]
    assert first.slots == {"h": 4}
    book.acknowledge("node", first.sequence)
    book.set_demand("kafka", {"h": 4})
    lowered = {grant.stream: grant for grant in book.grants({}, {}, 1)}
    assert lowered["node"].slots == {"h": 0}
    book.acknowledge("node", lowered["node"].sequence)
    [raised] = book.grants({}, {}, 2)
    assert (raised.stream, raised.slots) == ("kafka", {"h": 4})
    assert book.granted("kafka", "h") == 4
    book.acknowledge("kafka", raised.sequence)
    book.set_demand("kafka", {})
    [back] = [grant for grant in book.grants({("kafka", "h"): 1}, {}, 3) if grant.stream == "kafka"]
    assert back.slots == {"h": 1}
