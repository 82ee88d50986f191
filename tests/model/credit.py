"""Model: the slots of one handler in one worker, split between two nodes that both have jobs for it.

| action | stands for |
|---|---|
| lower, raise | `CreditBook.grants`: the worker tells a node its credit, as an absolute number |
| take in credit | the node's side: `SlotBook`; it acknowledges what it has taken in |
| hand out | `Claimer`: never more outstanding than the credit says |
| read | the worker takes in the next message of a stream: an acknowledgement, or a job to run |
| finish | an attempt ends; its result frees the slot on the node when that reads it |
| break stream | a new stream: what was under way is gone, the account begins anew (`CreditBook.join`), running ones are reported |
"""  # noqa: E501

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Removed

LIMIT = 2
NODES = (0, 1)


class Node(NamedTuple):
    """One node, the streams to and from it, and the worker's account of it."""

    due: int = 1
    credit: int = 0  # as the node knows it
    outstanding: int = 0
    told: int = 0  # as the worker has told it last
    acked: int = 0
    unacked: tuple[int, ...] = ()
    running: int = 0
    to_node: tuple[int, ...] = ()  # credits; -1: a result
    to_worker: tuple[int, ...] = ()  # acknowledged credits; -1: a job

    @property
    def bound(self) -> int:
        """The most that the node may use, as far as the worker can know."""
        return max(self.acked, self.running, *self.unacked, 0)


State = tuple[tuple[Node, Node], int]


class Credit:
    """The model; see the module."""

    def __init__(self, removed: Removed = ()) -> None:
        self._removed = removed

    def initial(self) -> State:
        return (Node(due=3), Node(due=1)), 1

    def wrong(self, state: State) -> str:
        return "more attempts run than the worker has slots" if sum(n.running for n in state[0]) > LIMIT else ""

    def is_good(self, state: State) -> bool:
        return all(not (node.due or node.outstanding or node.running) for node in state[0])

    def steps(self, state: State) -> Iterator[Step[State]]:
        nodes, breaks = state
        for number in NODES:
            node = nodes[number]
            for action, after in self._moves(node, nodes[1 - number]):
                pair = (after, nodes[1]) if number == 0 else (nodes[0], after)
                yield Step((action, number), (pair, breaks))
            if breaks and (node.to_node or node.to_worker):
                broken = self._broken(node)
                pair = (broken, nodes[1]) if number == 0 else (nodes[0], broken)
                yield Step(("break stream", number), (pair, breaks - 1))

    def _moves(self, node: Node, other: Node) -> Iterator[tuple[str, Node]]:
        if not node.unacked:
            for slots in range(LIMIT + 1):
                if slots < node.told or (slots > node.told and slots + self._taken(other) <= LIMIT):
                    told = node._replace(told=slots, unacked=(slots,), to_node=(*node.to_node, slots))
                    yield f"tell {slots} slots", told
        if node.to_node:
            yield "node reads", _node_reads(node)
        if node.due and node.outstanding < node.credit:
            out = node._replace(due=node.due - 1, outstanding=node.outstanding + 1, to_worker=(*node.to_worker, -1))
            yield "hand out", out
        if node.to_worker:
            yield "worker reads", _worker_reads(node)
        if node.running:
            yield "finish", node._replace(running=node.running - 1, to_node=(*node.to_node, -1))

    def _taken(self, other: Node) -> int:
        return other.told if Protection.ACK_BEFORE_RAISE in self._removed else other.bound

    def _broken(self, node: Node) -> Node:
        """The report names what runs; jobs that were under way go back, results are sent again."""
        kept = node.credit if Protection.FRESH_CREDIT in self._removed else 0
        lost = node.to_worker.count(-1)
        return Node(due=node.due + lost, credit=kept, outstanding=node.running, running=node.running)


def _node_reads(node: Node) -> Node:
    message, rest = node.to_node[0], node.to_node[1:]
    if message < 0:
        return node._replace(outstanding=node.outstanding - 1, to_node=rest)
    return node._replace(credit=message, to_node=rest, to_worker=(*node.to_worker, message))


def _worker_reads(node: Node) -> Node:
    message, rest = node.to_worker[0], node.to_worker[1:]
    if message < 0:
        return node._replace(running=node.running + 1, to_worker=rest)
    return node._replace(acked=message, unacked=node.unacked[1:], to_worker=rest)
