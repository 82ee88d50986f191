"""Model: a shard goes from node 1 to node 2 while job messages are under way; what runs is adopted, never run twice.

Worker 1 has streams to both nodes, worker 2 to node 2. Node 1 may stall after any claim and send what it claimed much
later; streams to worker 1 may break.

| action | stands for |
|---|---|
| claim, send | CLAIM at the node's epoch; the job batch, perhaps much later: `Claimer` |
| take over | FENCE_IN by node 2, then `ShardRunner.start`: `load_running`, and only then claims |
| hello | `Adoption.hello_shards`: the owner hello, with the question about rows of older epochs |
| read | the worker takes in the next message of a stream: `Inbox.on_jobs` with the epoch gate, `Inbox.on_owner_hello` |
| report | node 2 takes in an answer: `Adoption.reported`, then `Adoption.give_back` |
| break stream, attach | a new stream of worker 1 to node 2, its hello taken in: `Adoption.attached` |
| finish | the worker's result, committed by any node: FINISH by the open claim |
| node 1 dies | its stream ends: what was unread on it is gone |
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.model import tables
from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Job, Removed
from tests.model.tables import State as JobState

OLD, NEW = 1, 2
MAX_CLAIMS = 4

Message = tuple[str, int, int]  # ("job", claim, epoch), or ("hello", epoch, question)


class Worker(NamedTuple):
    """What a worker knows: the newest epoch, and the claim that it runs (0: none)."""

    epoch: int = 0
    running: int = 0


class Node2(NamedTuple):
    """The new owner's memory."""

    owns: bool = False
    handed_over: tuple[int, ...] = ()  # claims with a session in the registry
    loaded: tuple[int, ...] = ()  # claims without one: found when the shard was taken over
    asked: tuple[tuple[int, ...], ...] = ()  # by question: the claims that it asks about
    unsent: int = 0


class State(NamedTuple):
    """The row, the nodes, the streams (oldest message first), the workers; what may still go wrong."""

    job: Job = Job()
    unsent: int = 0  # claimed by node 1, and not sent yet
    node: Node2 = Node2()
    from_old: tuple[Message, ...] = ()  # node 1 to worker 1
    from_new: tuple[tuple[Message, ...], tuple[Message, ...]] = ((), ())  # node 2 to workers 1 and 2
    residue: tuple[Message, ...] = ()  # of a broken stream of node 2 to worker 1
    reports: tuple[tuple[int, int], ...] = ()  # worker 1 to node 2: (question, claim that runs)
    attaching: bool = False  # worker 1 has broken its stream to node 2, whose new one is not taken in yet
    greeting: int = 0  # the claim named by the hello of that one
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    breaks: int = 2
    deaths: int = 1


class Takeover:
    """The model; see the module."""

    def __init__(self, removed: Removed = ()) -> None:
        self._removed = removed

    def initial(self) -> State:
        return State()

    def wrong(self, state: State) -> str:
        first, second = state.workers
        if first.running and second.running:
            return "two attempts of the job run"
        running = first.running or second.running
        if running and not tables.is_open(state.job, running):
            return "an attempt runs that was given back"
        return ""

    def is_good(self, state: State) -> bool:
        return state.job.is_final

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._old_node(state)
        yield from self._new_node(state)
        yield from self._worker_reads(state)
        yield from self._streams(state)
        for number, worker in enumerate(state.workers):
            if worker.running:
                job = tables.finish(state.job, worker.running, JobState.COMPLETED) or state.job
                after = state._replace(job=job)
                yield Step(("finish", worker.running), _worker(after, number, worker._replace(running=0)))

    def _old_node(self, state: State) -> Iterator[Step[State]]:
        if not state.node.owns and state.job.claim < MAX_CLAIMS - 1:
            job = tables.claim(state.job, OLD, 1)
            if job is not None:
                yield Step(("node 1 claims", job.claim), state._replace(job=job, unsent=job.claim))
        if state.unsent:
            sent = (*state.from_old, ("job", state.unsent, OLD))
            yield Step(("node 1 sends", state.unsent), state._replace(unsent=0, from_old=sent))
        if state.deaths and state.node.owns and (state.unsent or state.from_old):
            yield Step(("node 1 dies",), state._replace(unsent=0, from_old=(), deaths=0))

    def _new_node(self, state: State) -> Iterator[Step[State]]:
        node, job = state.node, state.job
        if not node.owns:
            loaded = (job.claim,) if job.state is JobState.RUNNING else ()
            yield Step(("node 2 takes over",), state._replace(node=node._replace(owns=True, loaded=loaded)))
            return
        if not node.asked and not state.attaching:
            yield Step(("node 2 says hello",), self._hello(state))
        if job.claim < MAX_CLAIMS and not node.unsent:
            for worker in (1, 2):
                claimed = tables.claim(job, NEW, worker)
                if claimed is not None:
                    after = state._replace(job=claimed, node=node._replace(unsent=claimed.claim))
                    yield Step(("node 2 claims", claimed.claim, "for worker", worker), after)
        if node.unsent:
            yield Step(("node 2 sends", node.unsent), self._sent(state))
        if state.reports:
            yield Step(("node 2 takes in a report",), self._reported(state))

    def _hello(self, state: State) -> State:
        """Tell worker 1 of the epoch, and ask about what is running there."""
        node = state.node
        asked = node.loaded
        if Protection.OLDER_EPOCH in self._removed:
            asked = (0,)  # whatever runs there by the time of the answer
        message = ("hello", NEW, len(node.asked))
        node = node._replace(asked=(*node.asked, asked))
        return state._replace(node=node, from_new=((*state.from_new[0], message), state.from_new[1]))

    def _sent(self, state: State) -> State:
        node = state.node
        number = state.job.worker if state.job.open_claim == node.unsent else 1
        message = ("job", node.unsent, NEW)
        node = node._replace(unsent=0, handed_over=(*node.handed_over, node.unsent))
        after = state._replace(node=node)
        if number == 2:
            return after._replace(from_new=(state.from_new[0], (*state.from_new[1], message)))
        if state.attaching:
            return after  # into a stream that the worker has left
        return after._replace(from_new=((*state.from_new[0], message), state.from_new[1]))

    def _reported(self, state: State) -> State:
        (question, held), *rest = state.reports
        asked = state.node.asked[question]
        if asked == (0,):
            asked = (state.job.claim,) if state.job.worker == 1 else ()
        lost = [one for one in asked if one != held]
        node = state.node
        if held in asked:
            node = node._replace(
                loaded=tuple(one for one in node.loaded if one != held), handed_over=(*node.handed_over, held)
            )
        return _give_back(state._replace(reports=tuple(rest), node=node), lost)

    def _worker_reads(self, state: State) -> Iterator[Step[State]]:
        if state.from_old:
            yield Step(("worker 1 reads from node 1",), self._read(state._replace(from_old=state.from_old[1:]), 0,
                                                                   state.from_old[0]))  # fmt: skip
        first, second = state.from_new
        if first:
            yield Step(("worker 1 reads from node 2",), self._read(state._replace(from_new=(first[1:], second)), 0,
                                                                   first[0]))  # fmt: skip
        if second:
            yield Step(("worker 2 reads from node 2",), self._read(state._replace(from_new=(first, second[1:])), 1,
                                                                   second[0]))  # fmt: skip
        if state.residue:
            yield Step(("worker 1 reads from the old stream",), self._read(
                state._replace(residue=state.residue[1:]), 0, state.residue[0]))  # fmt: skip

    def _read(self, state: State, number: int, message: Message) -> State:
        worker = state.workers[number]
        if message[0] == "hello":
            _, epoch, question = message
            answered = state._replace(reports=(*state.reports, (question, worker.running)))
            return _worker(answered, number, worker._replace(epoch=max(worker.epoch, epoch)))
        _, claim, epoch = message
        if epoch < worker.epoch and Protection.EPOCH_GATE not in self._removed:
            return state
        worker = worker._replace(epoch=max(worker.epoch, epoch))
        if claim > worker.running:
            worker = worker._replace(running=claim)
        return _worker(state, number, worker)

    def _streams(self, state: State) -> Iterator[Step[State]]:
        """Worker 1 loses its stream to node 2 and opens another."""
        if state.breaks and state.node.owns and not state.attaching:
            kept = state.from_new[0] if Protection.STREAM_DISCARD in self._removed else ()
            broken = state._replace(
                breaks=state.breaks - 1, attaching=True, reports=(), residue=kept, from_new=((), state.from_new[1]),
                greeting=state.workers[0].running,
            )  # fmt: skip
            yield Step(("worker 1 breaks its stream",), broken)
        if state.attaching:
            node, held = state.node, state.greeting
            lost = [one for one in node.handed_over if one != held and _is_of_worker_1(state.job, one)]
            handed = (*(one for one in node.handed_over if one not in lost), *((held,) if held in node.loaded else ()))
            node = node._replace(handed_over=handed, loaded=tuple(one for one in node.loaded if one != held))
            after = _give_back(state._replace(attaching=False, greeting=0, node=node), lost)
            yield Step(("node 2 attaches worker 1",), self._hello(after))


def _is_of_worker_1(job: Job, claim: int) -> bool:
    return job.open_claim == claim and job.worker == 1


def _give_back(state: State, lost: list[int]) -> State:
    job = state.job
    for claim in lost:
        if tables.is_running(job, claim):
            job = tables.requeue(job, claim, burn=False) or job
    node = state.node._replace(loaded=tuple(one for one in state.node.loaded if one not in lost))
    return state._replace(job=job, node=node)


def _worker(state: State, number: int, worker: Worker) -> State:
    first, second = state.workers
    return state._replace(workers=(worker, second) if number == 0 else (first, worker))
