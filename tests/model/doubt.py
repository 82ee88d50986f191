"""Model: a worker with streams to two nodes, which find out together whether it is gone, whatever its lease says.

Time goes in ticks; the grace is two. A node that hears the worker renews its lease within each tick.

| action | stands for |
|---|---|
| break, come back | a stream ends, the worker opens a new one: `Resets.stream_lost`, `workers.ADMIT` |
| crash, stream ends | the worker dies, and each node notices at a time of its own |
| note | the node's doubt goes into the worker's row: `Resets._note`, `workers.DOUBT` |
| renew | a node hears the worker, and takes the doubt out: `workers.RENEW` |
| give up | the node has waited for the grace: `Resets._give_up`, `workers.LOSE` |
| stop waiting | no doubt is left after that: another node hears it |
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Removed

NODES = (0, 1)
GRACE = 2


class Node(NamedTuple):
    """One node's stream to the worker, and its wait for one that broke."""

    open: bool = True
    renewed: bool = True  # in this tick
    noted: bool = False
    waited: int = -1  # ticks; -1: it does not wait


class State(NamedTuple):
    """The worker, its row (age of the doubt in ticks, -1: none), the nodes."""

    alive: bool = True
    doubt: int = -1
    lost: bool = False
    nodes: tuple[Node, Node] = (Node(), Node())
    breaks: int = 3
    crashes: int = 1


class Doubt:
    """The model; see the module."""

    def __init__(self, removed: Removed = ()) -> None:
        self._removed = removed

    def initial(self) -> State:
        return State()

    def wrong(self, state: State) -> str:
        return ""

    def is_good(self, state: State) -> bool:
        """A dead worker is lost; a living one has all its streams, and nobody doubts it."""
        if not state.alive:
            return state.lost
        return not state.lost and state.doubt < 0 and all(node.open and node.waited < 0 for node in state.nodes)

    def steps(self, state: State) -> Iterator[Step[State]]:
        if all(node.renewed or not node.open for node in state.nodes):
            yield Step(("tick",), self._tick(state))
        if state.alive and state.crashes:
            yield Step(("crash",), state._replace(alive=False, crashes=0))
        for number in NODES:
            node = state.nodes[number]
            if node.open:
                yield from self._connected(state, number, node)
            else:
                yield from self._broken(state, number, node)

    def _connected(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        gone = Node(open=False, waited=0)
        if not state.alive:
            yield Step(("stream ends", number), _with(state, number, gone))
        elif state.breaks:
            yield Step(("break", number), _with(state._replace(breaks=state.breaks - 1), number, gone))
        if not node.renewed:
            doubt = state.doubt if Protection.DOUBT_TAKEN_OUT in self._removed else -1
            # What was heard before it was lost does not bring it back.
            after = state._replace(doubt=doubt, lost=state.lost and not state.alive)
            yield Step(("renew", number), _with(after, number, node._replace(renewed=True)))

    def _broken(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        if state.alive:
            yield Step(("come back", number), _with(state._replace(doubt=-1, lost=False), number, Node()))
        if node.waited >= 0 and not node.noted:
            yield Step(("note", number), _with(state._replace(doubt=0), number, node._replace(noted=True)))
        if node.waited < GRACE:
            return
        stands = state.doubt >= GRACE or Protection.DOUBT_STANDS in self._removed
        heard = state.alive and any(one.open for one in state.nodes)
        if stands:
            wrong = "a worker is given up that a node hears" if heard else ""
            yield Step(("give up", number), _with(state._replace(lost=True), number, Node(open=False)), wrong)
        elif state.doubt < 0 and state.nodes[1 - number].waited < 0:
            yield Step(("stop waiting", number), _with(state, number, Node(open=False)))

    def _tick(self, state: State) -> State:
        first, second = (
            node._replace(renewed=not node.open, waited=min(node.waited + 1, GRACE) if node.noted else node.waited)
            for node in state.nodes
        )
        return state._replace(doubt=min(state.doubt + 1, GRACE) if state.doubt >= 0 else -1, nodes=(first, second))


def _with(state: State, number: int, node: Node) -> State:
    first, second = state.nodes
    return state._replace(nodes=(node, second) if number == 0 else (first, node))
