"""What other nodes tell: the receiving half of the talk between engines.

Everything may be wrong by the time it is heard: it concerns a shard that has moved on, a job that has been claimed, an
attempt that has long been forgotten. Then it costs a needless look at most.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from server.domain.due import DueJob
from server.domain.job import AttemptRef
from server.engine.adoption import Adoption
from server.engine.cancels import Cancels
from server.engine.ender import Ender
from server.engine.firer import Firer
from server.engine.parking import Parking
from server.engine.ports_peers import (
    AttemptAsked,
    AttemptDisclaimed,
    AttemptEnded,
    AttemptStarted,
    HandlersChanged,
    JobFinal,
    JobWatched,
    KeyFreed,
    News,
    Peers,
    ScheduleChanged,
    StopAttempt,
)
from server.engine.waiters import Waiters

# A watch that is not repeated ends by itself: the node that asked for it may be gone.
WATCH_S: Final = 15.0
MAX_WATCHES: Final = 200_000


class PeerNews:
    """Takes in news; see the module. `pending` takes in jobs, `handlers_changed` is to read what handlers are like."""

    def __init__(
        self,
        *,
        peers: Peers,
        ender: Ender,
        parking: Parking,
        firer: Firer,
        cancels: Cancels,
        adoption: Adoption,
        waiters: Waiters,
        pending: Callable[[Sequence[DueJob]], None],
    ) -> None:
        self._ender = ender
        self._parking = parking
        self._firer = firer
        self._cancels = cancels
        self._adoption = adoption
        self._waiters = waiters
        self._pending = pending
        self.watches = RemoteWatches(waiters, peers)
        self.handlers_changed: Callable[[], None] = lambda: None

    def take(self, node: str, news: Sequence[News]) -> list[int]:
        """Take in what a node tells; return the watched jobs that it did not watch before."""
        pending: list[DueJob] = []
        watched: list[int] = []
        asked: list[AttemptAsked] = []
        disclaimed: list[AttemptRef] = []
        for one in news:
            match one:
                case DueJob():
                    pending.append(one)
                case AttemptStarted():
                    self._adoption.started(one.ref, one.worker_id, one.timeout_at)
                case AttemptEnded():
                    self._ender.told(one)
                case KeyFreed():
                    self._parking.key_freed(one.shard, one.namespace_id, one.key)
                case JobFinal():
                    self._waiters.finished([one.job_id])
                case JobWatched():
                    watched.append(one.job_id)
                case ScheduleChanged():
                    self._firer.schedules_changed(one.shard, one.next_fire_at)
                case StopAttempt():
                    self._cancels.send_here(one.ref, one.worker_id, one.reason)
                case AttemptAsked():
                    asked.append(one)
                case AttemptDisclaimed():
                    disclaimed.append(one.ref)
                case HandlersChanged():
                    self.handlers_changed()
                case _:
                    assert_never(one)
        if pending:
            self._pending(pending)
        if asked:
            self._adoption.ask_for(node, asked)
        if disclaimed:
            self._adoption.disclaimed(disclaimed)
        return self.watches.add(node, watched) if watched else []


class RemoteWatches:
    """Jobs whose end other nodes want to hear of: each is told once."""

    def __init__(self, waiters: Waiters, peers: Peers, *, limit: int = MAX_WATCHES) -> None:
        self._waiters = waiters
        self._peers = peers
        self._limit = limit
        # In the order of their latest repetition.
        self._watches: dict[tuple[str, int], _Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, node: str, job_ids: Sequence[int]) -> list[int]:
        """Watch jobs for a node, or go on; return those that were not watched before.

        If there are too many, the oldest watches end.
        """
        now = time.monotonic()
        new = []
        for job_id in job_ids:
            watch = self._watches.pop((node, job_id), None)
            if watch is None:
                new.append(job_id)
                watch = _Watch(self, node, job_id)
                self._waiters.join(job_id, watch)
            watch.until = now + WATCH_S
            self._watches[(node, job_id)] = watch
        while self._watches:
            oldest = next(iter(self._watches.values()))
            if oldest.until > now and len(self._watches) <= self._limit:
                break
            self._end(oldest)
        return new

    def notify(self, watch: "_Watch") -> None:
        """Tell a node of the end that it has waited for."""
        self._end(watch)
        self._peers.tell_node(watch.node, JobFinal(watch.job_id))

    def _end(self, watch: "_Watch") -> None:
        self._watches.pop((watch.node, watch.job_id), None)
        self._waiters.leave(watch.job_id, watch)


class _Watch:
    """One node's interest in one job."""

    __slots__ = ("_watches", "job_id", "node", "until")

    def __init__(self, watches: RemoteWatches, node: str, job_id: int) -> None:
        self._watches = watches
        self.node = node
        self.job_id = job_id
        self.until = 0.0

    def notify(self) -> None:
        self._watches.notify(self)
