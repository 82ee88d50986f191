"""Connected workers and their free slots.

Credit is absolute: a worker grants this node a number of slots per handler, and the node never has more attempts of the
handler outstanding on that session. A slot is reserved before a claim, bound to the job by the claim, and free again
when the worker's result arrives. Only what was handed out on the session counts: what the worker runs besides, from
other nodes or an older session, it has taken into account itself, in the credit that it grants. A smaller credit is
acknowledged only when no slot beyond it is reserved any more: the worker gives it to another node at once.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from server.domain.dispatch import is_queue_lease
from server.domain.handler import HandlerView
from server.domain.job import AttemptRef
from server.domain.outcome import AckStatus
from server.engine.ports import WorkerLink


@dataclass(slots=True, eq=False)
class WorkerSession:
    """One worker's stream to this node."""

    session_id: int
    worker_id: int
    name: str
    namespace_id: int
    link: WorkerLink
    registered: Mapping[int, int]
    """Handler id → the worker's max_concurrency."""
    credit: dict[int, int] = field(default_factory=dict)
    outstanding: dict[AttemptRef, int] = field(default_factory=dict)
    """Attempts handed out on it and not yet reported back, with their handler."""
    used: dict[int, int] = field(default_factory=dict)
    """Reserved slots and outstanding attempts by handler."""
    reserved: dict[int, int] = field(default_factory=dict)
    """Those of them that are reserved and not bound to a job yet."""
    told_demand: bool = False
    """Whether the worker was told last that jobs wait."""
    unacked: int | None = None
    """Sequence of the latest credit that is not acknowledged."""
    heard_at: float = field(default_factory=time.monotonic)
    full: bool = False
    """Whether what was handed out piles up on the stream, so that nothing more should be."""
    closed: bool = False

    def free(self, handler_id: int) -> int:
        """Return the free slots of a handler."""
        if self.full:
            return 0
        return max(0, self.credit.get(handler_id, 0) - self.used.get(handler_id, 0))

    def acknowledge(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        """Tell the worker the fate of results."""
        self.link.send_acks(acks)

    def grant(self, sequence: int, credits: Mapping[int, int]) -> None:
        """Take in a credit, and acknowledge it as soon as it is kept to."""
        self.credit.update(credits)
        self.unacked = sequence
        self.settle()

    def settle(self) -> None:
        """Acknowledge the latest credit if it is kept to: whatever goes beyond it has been sent before this."""
        if self.unacked is None:
            return
        if all(not count or self.used[one] <= self.credit.get(one, 0) for one, count in self.reserved.items()):
            self.link.send_credit_ack(self.unacked)
            self.unacked = None


class SlotBook:
    """The sessions of this node, by worker and by handler."""

    def __init__(self, *, silence_s: float) -> None:
        self._silence_s = silence_s
        self._sessions: dict[int, WorkerSession] = {}
        self._by_handler: dict[int, list[WorkerSession]] = {}
        self._queues: dict[int, WorkerSession] = {}
        """By handler: what takes its jobs in place of its workers' sessions."""

    def attach(self, session: WorkerSession) -> WorkerSession | None:
        """Add a session; return the older session that it replaces."""
        older = self._sessions.get(session.worker_id)
        if older is not None:
            self.detach(older)
        self._sessions[session.worker_id] = session
        for handler_id in session.registered:
            self._by_handler.setdefault(handler_id, []).append(session)
        return older

    def detach(self, session: WorkerSession) -> None:
        """Remove a session; nothing is handed to it any more."""
        session.closed = True
        if self._sessions.get(session.worker_id) is session:
            del self._sessions[session.worker_id]
        for handler_id in session.registered:
            sessions = self._by_handler.get(handler_id, [])
            if session in sessions:
                sessions.remove(session)
            if not sessions:
                self._by_handler.pop(handler_id, None)

    def set_queue(self, handler_id: int, queue: WorkerSession | None) -> None:
        """Have a queue take a handler's jobs in place of its workers' sessions; None for the sessions again."""
        if queue is None:
            self._queues.pop(handler_id, None)
        else:
            self._queues[handler_id] = queue

    def of_worker(self, worker_id: int) -> WorkerSession | None:
        """Return the session of a worker, if it is connected here."""
        return self._sessions.get(worker_id)

    def sessions(self) -> list[WorkerSession]:
        """Return all sessions."""
        return list(self._sessions.values())

    def heard(self, worker_id: int) -> bool:
        """Whether a connected worker was heard lately enough to be taken for alive; the lease of a topic always is."""
        if is_queue_lease(worker_id):
            return True
        session = self._sessions.get(worker_id)
        return session is not None and self._responsive(session, time.monotonic())

    def heard_workers(self) -> dict[int, float]:
        """Return how many seconds ago each worker was heard, of those that were heard lately."""
        now = time.monotonic()
        return {
            one.worker_id: max(0.0, now - one.heard_at) for one in self._sessions.values() if self._responsive(one, now)
        }

    def view(self, handler_id: int) -> HandlerView:
        """Return the workers, slots and free slots of a handler."""
        sessions = self._by_handler.get(handler_id, [])
        queue = self._queues.get(handler_id)
        if queue is not None:
            slots = sum(session.registered[handler_id] for session in sessions)
            return HandlerView(len(sessions), slots, queue.free(handler_id), published=True)
        slots = sum(session.credit.get(handler_id, 0) for session in sessions)
        return HandlerView(len(sessions), slots, sum(session.free(handler_id) for session in sessions))

    def handlers(self) -> list[int]:
        """Return the handlers that some connected worker knows and is handed the jobs of."""
        return [handler_id for handler_id in self._by_handler if handler_id not in self._queues]

    def shared(self, handler_id: int) -> bool:
        """Whether workers of a handler have slots that they have not granted to this node, but might."""
        if handler_id in self._queues:
            return False
        sessions = self._by_handler.get(handler_id, [])
        return any(session.credit.get(handler_id, 0) < session.registered[handler_id] for session in sessions)

    def free(self, handler_id: int) -> int:
        """Return the free slots of a handler on workers that can be reached."""
        now = time.monotonic()
        sessions = self._takers(handler_id)
        return sum(session.free(handler_id) for session in sessions if self._responsive(session, now))

    def reserve(self, handler_id: int, count: int) -> list[WorkerSession]:
        """Reserve up to `count` slots, spread over the workers with the most room."""
        now = time.monotonic()
        room = [(session.free(handler_id), session) for session in self._takers(handler_id)]
        room = [(free, session) for free, session in room if free and self._responsive(session, now)]
        taken: list[WorkerSession] = []
        while room and len(taken) < count:
            share = max(1, (count - len(taken)) // len(room))
            left = []
            for free, session in sorted(room, key=lambda one: -one[0]):
                grant = min(free, share, count - len(taken))
                taken.extend([session] * grant)
                session.used[handler_id] = session.used.get(handler_id, 0) + grant
                session.reserved[handler_id] = session.reserved.get(handler_id, 0) + grant
                if free > grant:
                    left.append((free - grant, session))
            room = left
        return taken

    def release(self, handler_id: int, sessions: Iterable[WorkerSession]) -> None:
        """Give reserved slots back. Jobs that were bound to others have to have been sent."""
        for session in sessions:
            session.used[handler_id] -= 1
            session.reserved[handler_id] -= 1
            session.settle()

    def hand_over(self, session: WorkerSession, handler_id: int, ref: AttemptRef) -> None:
        """Turn a reserved slot into an outstanding attempt; `settle` the session when the job has been sent."""
        session.reserved[handler_id] -= 1
        session.outstanding[ref] = handler_id

    def returned(self, worker_id: int, ref: AttemptRef) -> None:
        """Free the slot of an attempt that has ended; harmless if it is not outstanding."""
        session = self._sessions.get(worker_id)
        if session is not None and (handler_id := session.outstanding.pop(ref, None)) is not None:
            session.used[handler_id] -= 1

    def _takers(self, handler_id: int) -> list[WorkerSession]:
        queue = self._queues.get(handler_id)
        return self._by_handler.get(handler_id, []) if queue is None else [queue]

    def _responsive(self, session: WorkerSession, now: float) -> bool:
        return now - session.heard_at <= self._silence_s
