"""Handlers whose jobs are published: for each of them a queue stands in for the slots of all its workers.

The claimer binds due jobs to the lease of the handler's topic as it would to a worker, and hands them to the broker.
The room of a queue is what the handler's cap leaves: the cap is split over the nodes by the shards that they serve, and
what counts is every attempt of the handler that this node knows to run, whether it waits in the topic or a consumer has
started it. While the broker is away there is no room, so the jobs stay pending, and no others are held up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from server.domain.dispatch import queue_lease, share_of_unfinished
from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import AckStatus
from server.engine.ownership import Ownership
from server.engine.ports import Epochs, JobBroker
from server.engine.registry import Registry
from server.engine.slots import SlotBook, WorkerSession

# Queues are no sessions of a worker, and have no number among them.
_NO_SESSION: Final = 0


@dataclass(slots=True, eq=False)
class QueueSession(WorkerSession):
    """A queue, as the claimer sees it: a session that is always heard and has as many slots as there is room."""

    room: Callable[[], int] = lambda: 0

    def free(self, handler_id: int) -> int:
        """Return how many more jobs of the handler may be published."""
        return max(0, self.room() - self.reserved.get(handler_id, 0))

    def settle(self) -> None:
        """Forget what was handed over: the registry of running attempts counts it."""
        self.outstanding.clear()
        self.used = dict(self.reserved)


class NoBroker:
    """Implements `JobBroker` for a node that was given none."""

    def takes(self, handler_id: int) -> bool:
        """Take nothing."""
        return False

    def publish(self, handler_id: int, jobs: Sequence[ClaimedJob]) -> bool:
        """Publish nothing."""
        return False


class Queues:
    """The queues of published handlers; see the module."""

    def __init__(self, *, slots: SlotBook, registry: Registry, ownership: Ownership, wake: Callable[[], None]) -> None:
        """`wake` makes the claimer look for work: there may be room again."""
        self._slots = slots
        self._registry = registry
        self._ownership = ownership
        self._wake = wake
        self._limits: dict[int, int] = {}
        self.broker: JobBroker = NoBroker()

    def open(self, handler_id: int, max_unfinished: int) -> None:
        """Publish a handler's jobs from now on, with so many unfinished ones in the whole cluster at most."""
        if handler_id not in self._limits:
            self._slots.set_queue(handler_id, self._session(handler_id))
        self._limits[handler_id] = max_unfinished
        self._wake()

    def close(self, handler_id: int) -> None:
        """Hand a handler's jobs to its workers from now on; what was published stays so."""
        if self._limits.pop(handler_id, None) is not None:
            self._slots.set_queue(handler_id, None)
            self._wake()

    def is_open(self, handler_id: int) -> bool:
        """Whether a handler's jobs are published, as far as is known here."""
        return handler_id in self._limits

    def attempt_ended(self, handler_id: int) -> None:
        """An attempt of a handler has ended: if its jobs are published, there may be room for another one."""
        if handler_id in self._limits:
            self._wake()

    def room(self, handler_id: int) -> int:
        """Return how many more jobs of a handler may be published, those included for which a claim is under way."""
        limit = self._limits.get(handler_id)
        if limit is None or not self.broker.takes(handler_id):
            return 0
        owned, shards = len(self._ownership.epochs), len(self._ownership.partition_of)
        return max(0, share_of_unfinished(limit, owned, shards) - self._registry.of_handler(handler_id))

    def _session(self, handler_id: int) -> QueueSession:
        return QueueSession(
            session_id=_NO_SESSION,
            worker_id=queue_lease(handler_id),
            name="",
            namespace_id=0,
            link=_QueueLink(self, handler_id),
            registered={handler_id: 0},
            heard_at=float("inf"),
            room=lambda: self.room(handler_id),
        )


class _QueueLink:
    """Implements `WorkerLink` for a queue, of which only jobs are of interest."""

    def __init__(self, queues: Queues, handler_id: int) -> None:
        self._queues = queues
        self._handler_id = handler_id

    def send_jobs(self, jobs: Sequence[ClaimedJob]) -> bool:
        """Publish jobs; False if none of them will be."""
        return self._queues.broker.publish(self._handler_id, jobs)

    def send_acks(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        """Say nothing."""

    def send_cancels(self, cancels: Sequence[tuple[AttemptRef, str]]) -> None:
        """Say nothing: a consumer that starts the attempt is refused."""

    def send_owner_hello(self, request_id: int, epochs: Epochs) -> None:
        """Say nothing."""

    def send_audit(self, request_id: int, refs: Sequence[AttemptRef]) -> None:
        """Ask nobody."""

    def send_demand(self, waiting: Sequence[tuple[int, int]]) -> None:
        """Say nothing."""

    def send_credit_ack(self, sequence: int) -> None:
        """Say nothing."""

    def send_drain(self, grace: timedelta) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Nothing is open."""
