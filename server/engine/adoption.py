"""Who runs what: take-over of running attempts, reports of workers, and the audit.

An attempt that this node did not hand over on the worker's present stream is asked for. Three ways lead to "it was
never delivered, requeue it without burning a try":

- A worker opens a new stream to this node. Its hello reports everything it holds, and the old stream is discarded,
  unread messages included: what was handed over on the old stream and is not in the report was lost.
- A shard was taken over. Rows of older epochs, loaded before the owner hello was sent, and absent from the report that
  answers it, were lost: from the hello on the worker refuses dispatches of older epochs.
- The audit asks about what neither way has settled. A worker that this node cannot hear is asked through the others: it
  refuses from then on what it says that it does not hold, for that may be under way on its stream to this node.

A claim of the present epoch that is missing in a report is *not* lost: it may be on its way.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from server.domain.dispatch import is_queue_lease
from server.domain.ending import Recheck, RunningJob
from server.domain.job import AttemptRef
from server.domain.outcome import Outcome, Undelivered
from server.engine.deadlines import Deadlines
from server.engine.ender import Ender
from server.engine.ownership import Ownership
from server.engine.ports import EndingStore
from server.engine.ports_peers import AttemptAsked, AttemptDisclaimed, Peers
from server.engine.registry import Registry, RunningEntry
from server.engine.slots import SlotBook, WorkerSession

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Question:
    """Attempts that a worker was asked about; those that its report does not name were never delivered."""

    session: WorkerSession
    refs: set[AttemptRef] = field(default_factory=set)
    asker: str | None = None
    """Node on whose behalf the worker was asked."""


class Adoption:
    """Settles what workers hold; see the module."""

    def __init__(
        self,
        *,
        store: EndingStore,
        ownership: Ownership,
        registry: Registry,
        slots: SlotBook,
        ender: Ender,
        deadlines: Deadlines,
        peers: Peers,
        lost: Callable[[Sequence[AttemptRef]], None],
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._registry = registry
        self._slots = slots
        self._ender = ender
        self._deadlines = deadlines
        self._peers = peers
        self._lost = lost
        self._questions: dict[int, Question] = {}
        self._request_ids = itertools.count(1)
        self._audited_until = 0

    async def open_attempts(self, refs: Sequence[AttemptRef]) -> dict[AttemptRef, int]:
        """Return those attempts whose result would still be accepted, with their handler ids."""
        found: dict[AttemptRef, int] = {}
        for partition, some in self._ender.by_partition(refs).items():
            _, facts = await self._store.load_facts(partition, some)
            found |= {ref: one.handler_id for ref, one in facts.items()}
        return found

    def attached(self, session: WorkerSession, held: set[AttemptRef]) -> None:
        """A worker has opened a stream and reported what it holds: settle what was handed over on older streams."""
        lost = []
        for entry in self._registry.of_worker(session.worker_id):
            if entry.ref in held:
                entry.session_id = session.session_id
            elif entry.session_id is not None:
                lost.append(entry.ref)
        if lost:
            log.info("attempts lost with a stream", extra={"worker": session.name, "attempts": len(lost)})
            self._lost(lost)
        self._hello(session, sorted(self._ownership.epochs.items()))

    def taken_over(self, jobs: Iterable[RunningJob]) -> None:
        """Running rows of a shard were loaded, before its owner hello: watch over them."""
        for job in jobs:
            entry = RunningEntry(
                ref=job.ref,
                shard=job.shard,
                handler_id=job.handler_id,
                worker_id=job.worker_id,
                claim_epoch=job.claim_epoch,
                timeout_at=job.timeout_at,
                session_id=None,
                key=job.key,
            )
            self._registry.add(entry)
            self._deadlines.watch(entry)

    def started(self, ref: AttemptRef, worker_id: int, timeout_at: datetime | None) -> None:
        """A consumer has started a published attempt: from now on it is that worker's. The next audit confirms it."""
        entry = self._registry.get(ref)
        if entry is None or not is_queue_lease(entry.worker_id):
            return
        self._deadlines.forget(ref)
        now_its = replace(entry, worker_id=worker_id, timeout_at=timeout_at, session_id=None)
        self._registry.add(now_its)
        self._deadlines.watch(now_its)

    def hello_shards(self, shards: Sequence[tuple[int, int]]) -> None:
        """Shards were taken over: tell every worker, and ask what it holds."""
        for session in self._slots.sessions():
            self._hello(session, shards)

    def reported(self, session: WorkerSession, request_id: int, held: set[AttemptRef]) -> None:
        """A worker has answered an owner hello or an audit."""
        question = self._questions.pop(request_id, None)
        if question is None or question.session is not session:
            return
        if question.asker is not None:
            for ref in question.refs - held:
                self._peers.tell_node(question.asker, AttemptDisclaimed(ref))
            return
        lost = []
        for ref in question.refs:
            entry = self._registry.get(ref)
            if entry is None or entry.session_id is not None:
                continue
            if ref in held:
                entry.session_id = session.session_id
            else:
                lost.append(ref)
        if lost:
            log.info("attempts never delivered", extra={"worker": session.name, "attempts": len(lost)})
            self._lost(lost)

    async def audit(self) -> None:
        """Ask workers about attempts that this node did not hand over on their present stream."""
        # A question of the audit before that was not answered is asked again; older ones are given up.
        self._questions = {
            number: one
            for number, one in self._questions.items()
            if not one.session.closed and number > self._audited_until
        }
        self._audited_until = next(self._request_ids)
        for session in self._slots.sessions():
            refs = {entry.ref for entry in self._registry.of_worker(session.worker_id) if entry.session_id is None}
            if refs and not session.closed:
                request_id = self._ask(session, refs)
                session.link.send_audit(request_id, sorted(refs))
        for worker_id in self._registry.workers():
            if not self._slots.heard(worker_id):
                for entry in self._registry.of_worker(worker_id):
                    self._peers.tell_all(AttemptAsked(entry.ref, worker_id))

    def ask_for(self, node: str, asked: Iterable[AttemptAsked]) -> None:
        """Ask workers that are connected here about attempts, on behalf of another node."""
        by_worker: dict[int, set[AttemptRef]] = {}
        for one in asked:
            by_worker.setdefault(one.worker_id, set()).add(one.ref)
        for worker_id, refs in by_worker.items():
            session = self._slots.of_worker(worker_id)
            if session is not None and not session.closed:
                session.link.send_audit(self._ask(session, refs, node), sorted(refs))

    def disclaimed(self, refs: Iterable[AttemptRef]) -> None:
        """Attempts that this node has asked for through another one are not held by their worker."""
        lost = [ref for ref in refs if ref in self._registry]
        if lost:
            log.info("attempts never delivered, another node says", extra={"attempts": len(lost)})
            self._lost(lost)

    async def reconcile(self, partition: int, shard: int, rows: Sequence[RunningJob]) -> None:
        """Compare the registry with the running rows of a shard, read with the lane of its partition held."""
        there = {row.ref: row for row in rows}
        for entry in self._registry.of_shard(shard):
            if entry.ref not in there:
                self._ender.forget(entry.ref)
        for ref, row in there.items():
            if not is_queue_lease(row.worker_id):
                self.started(ref, row.worker_id, row.timeout_at)
        self.taken_over(row for ref, row in there.items() if ref not in self._registry)

    async def give_back(self, partition: int, refs: Sequence[AttemptRef]) -> None:
        """Requeue attempts that were never delivered, without burning a try."""
        outcomes: dict[AttemptRef, Outcome] = {ref: Undelivered() for ref in refs}
        async with self._ownership.lane(partition):
            await self._ender.decide_and_end_fenced(partition, outcomes, Recheck.OPEN)

    def _hello(self, session: WorkerSession, shards: Sequence[tuple[int, int]]) -> None:
        if not shards:
            return
        epochs = dict(shards)
        refs = {
            entry.ref
            for entry in self._registry.of_worker(session.worker_id)
            if entry.session_id is None and entry.claim_epoch < epochs.get(entry.shard, 0)
        }
        session.link.send_owner_hello(self._ask(session, refs), shards)

    def _ask(self, session: WorkerSession, refs: set[AttemptRef], asker: str | None = None) -> int:
        request_id = next(self._request_ids)
        self._questions[request_id] = Question(session, refs, asker)
        return request_id
