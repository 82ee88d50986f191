"""Model: leases of one shard, the fence-in, and fenced statements; nodes that stall at any point.

| action | stands for |
|---|---|
| grant, expire, wipe | the coordinator: a lease to whoever asks first, the end of a session, a new generation |
| notice | the node learns that its session is over: `ShardManager._end_session` |
| fence-in, answer lost, read back | `server.store.shards.fence_in`: FENCE_IN, then READ_BACK; a stall between the lease and this is the step not being taken |
| begin, commit, roll back | any statement behind `server.store.fence.FENCE`: claim, reap, firing, clean-up |
| lose the connection | `OutcomeUnknown`: the statement goes on in the database, the node does not know |
| bump, conclude | `ShardRunner.recover`: BUMP, then what has been claimed is read |
"""  # noqa: E501

from collections.abc import Iterator
from typing import NamedTuple

from tests.model import tables
from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Lease, Removed, Shard

NODES = 2
NO_LEASE = Lease(0, 0)


class Node(NamedTuple):
    """One node's memory, and its statement in the database."""

    lease: Lease = NO_LEASE
    epoch: int = 0
    statement: int = 0  # the epoch with which it began
    unknown: bool = False  # the node has lost sight of it, and has not settled what it did
    written_off: bool = False  # the node takes it for not having happened


class State(NamedTuple):
    """The coordinator's knowledge, the shard's row, the nodes; and what the adversary may still do."""

    generation: int = 1
    tokens: int = 0
    holder: int = -1
    shard: Shard = Shard()
    nodes: tuple[Node, ...] = (Node(),) * NODES
    expiries: int = 2
    wipes: int = 1
    losses: int = 1


class Fencing:
    """The model; see the module."""

    def __init__(self, removed: Removed = ()) -> None:
        self._removed = removed

    def initial(self) -> State:
        return State()

    def wrong(self, state: State) -> str:
        return ""

    def is_good(self, state: State) -> bool:
        """The holder of the lease serves, and nothing is unsettled."""
        return state.holder >= 0 and all(
            (node.epoch == state.shard.epoch) is (number == state.holder) and not (node.statement or node.unknown)
            for number, node in enumerate(state.nodes)
        )

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._coordinator(state)
        for number, node in enumerate(state.nodes):
            yield from self._leasing(state, number, node)
            if node.statement:
                yield from self._in_database(state, number, node)
            if node.epoch:
                yield from self._serving(state, number, node)

    def _coordinator(self, state: State) -> Iterator[Step[State]]:
        if state.holder >= 0 and state.expiries:
            yield Step(("expire", state.holder), state._replace(holder=-1, expiries=state.expiries - 1))
        if state.wipes:
            after = state._replace(generation=state.generation + 1, tokens=0, holder=-1, wipes=0)
            yield Step(("wipe",), after)

    def _leasing(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        holds = state.holder == number
        if node.lease == NO_LEASE:
            if state.holder < 0 and state.tokens < 5:
                lease = Lease(state.generation, state.tokens + 1)
                granted = state._replace(tokens=lease.token, holder=number)
                yield Step(("grant", number), _with(granted, number, node._replace(lease=lease)))
            return
        if not holds:
            yield Step(("notice", number), _with(state, number, node._replace(lease=NO_LEASE, epoch=0, unknown=False)))
        if not node.epoch and not self._locked(state):
            yield from self._fence_in(state, number, node)

    def _fence_in(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        after = tables.fence_in(state.shard, node.lease, number + 1, self._removed)
        if after is not None:
            wrong = "a stalled node fences out a newer lease" if node.lease < state.shard.lease else ""
            fenced = state._replace(shard=after)
            yield Step(("fence-in", number), _with(fenced, number, node._replace(epoch=after.epoch)), wrong)
            if state.losses:
                yield Step(("fence-in, answer lost", number), fenced._replace(losses=state.losses - 1), wrong)
        elif epoch := tables.read_back(state.shard, node.lease, number + 1):
            yield Step(("read back", number), _with(state, number, node._replace(epoch=epoch)))
        else:
            yield Step(("fence refused, release", number), self._released(state, number, node))

    def _serving(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        if node.unknown:
            yield from self._recovery(state, number, node)
        elif not node.statement:
            if tables.passes(state.shard, node.epoch):
                begun = node._replace(statement=node.epoch, written_off=False)
                yield Step(("begin", number), _with(state, number, begun))
            else:
                yield Step(("fenced, release", number), self._released(state, number, node))
        elif state.losses and not node.written_off:
            lost = state._replace(losses=state.losses - 1)
            yield Step(("lose the connection", number), _with(lost, number, node._replace(unknown=True)))

    def _in_database(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        ended = node._replace(statement=0, written_off=False)
        wrong = ""
        if not tables.passes(state.shard, node.statement):
            wrong = "a statement of a fenced node commits"
        elif node.written_off:
            wrong = "a claim commits that its node has read back as not made"
        yield Step(("commit", number), _with(state, number, ended), wrong)
        yield Step(("roll back", number), _with(state, number, ended))

    def _recovery(self, state: State, number: int, node: Node) -> Iterator[Step[State]]:
        settled = node._replace(unknown=False, written_off=node.statement > 0)
        if Protection.BUMP_BEFORE_READ_BACK in self._removed:
            yield Step(("conclude", number), _with(state, number, settled))
        elif not self._locked(state):
            after = tables.bump(state.shard, node.epoch, number + 1)
            if after is None:
                yield Step(("fenced, release", number), self._released(state, number, node._replace(unknown=False)))
            else:
                raised = state._replace(shard=after)
                yield Step(("bump", number), _with(raised, number, settled._replace(epoch=after.epoch)))

    def _locked(self, state: State) -> bool:
        """Whether the shard's row is locked against updates."""
        if Protection.FOR_SHARE in self._removed:
            return False
        return any(node.statement for node in state.nodes)

    def _released(self, state: State, number: int, node: Node) -> State:
        after = _with(state, number, node._replace(lease=NO_LEASE, epoch=0))
        return after._replace(holder=-1) if state.holder == number else after


def _with(state: State, number: int, node: Node) -> State:
    nodes = (*state.nodes[:number], node, *state.nodes[number + 1 :])
    return state._replace(nodes=nodes)
