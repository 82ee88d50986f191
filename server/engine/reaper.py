"""The reaper: gives back the attempts of lost workers, and ends those that are over their time.

Two independent reasons with error texts of their own. Candidates are read without a fence; the statement that ends them
is fenced and checks state, claim and reason again, so that an attempt which has just ended, or a worker that has just
come back, is left alone. An attempt over its time is first told to stop; it is superseded when the worker confirms, or
`kill_grace` after its time and after it was told. A published job that no consumer has started in time is given back as
well, for another publication.
"""

import logging
import random
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from server.domain.dispatch import is_queue_lease
from server.domain.ending import Ended, Recheck, RunningJob
from server.domain.job import AttemptRef
from server.domain.outcome import TimedOut, Undelivered, WorkerLost, decide
from server.engine.cancels import Cancels
from server.engine.clock import DatabaseClock
from server.engine.ender import Ender
from server.engine.failpoints import Failpoints
from server.engine.liveness import Liveness
from server.engine.ownership import Ownership
from server.engine.ports import RunningStore
from server.engine.registry import Registry
from server.engine.slots import SlotBook
from server.engine.timings import EngineTimings

log = logging.getLogger(__name__)


class Reaper:
    """Ends the attempts of lost workers and those over their time; see the module."""

    def __init__(
        self,
        *,
        store: RunningStore,
        ownership: Ownership,
        registry: Registry,
        slots: SlotBook,
        ender: Ender,
        liveness: Liveness,
        cancels: Cancels,
        clock: DatabaseClock,
        failpoints: Failpoints,
        timings: EngineTimings,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._registry = registry
        self._slots = slots
        self._ender = ender
        self._liveness = liveness
        self._cancels = cancels
        self._clock = clock
        self._failpoints = failpoints
        self._timings = timings
        self._told: dict[AttemptRef, float] = {}
        self._overdue_since: dict[int, dict[AttemptRef, float]] = {}

    async def reap_once(self) -> None:
        """Look for lost workers once, and end their attempts."""
        suspects = [worker for worker in self._registry.workers() if not self._slots.heard(worker)]
        await self._reap(suspects, self._liveness.leases_judged_until())

    async def _reap(self, suspects: list[int], as_of: datetime) -> None:
        """End the attempts of those suspects that have ended or are lost, or whose lease was over at `as_of`."""
        if not suspects:
            return
        found = await self._store.dead_workers(suspects, as_of=as_of)
        dead = sorted(worker for worker in found if not self._slots.heard(worker))
        shards = self._registry.shards_of_workers(dead)
        for partition in sorted({self._ownership.partition_of[shard] for shard in shards}):
            await self._reap_workers(partition, dead, as_of)

    async def end_overdue(self, partition: int) -> None:
        """Tell attempts over their time to stop, and end those that did not."""
        shards = [shard for shard, _ in self._ownership.of_partition(partition)]
        found = await self._store.overdue(partition, shards)
        published = [one for one in found if is_queue_lease(one.worker_id)]
        if published:
            await self._end_not_started(partition, published)
            found = [one for one in found if not is_queue_lease(one.worker_id)]
        late = self._told_in_vain(partition, found)
        self.tell([one for one in found if one not in late])
        if not late:
            return
        now = self._clock.now()
        async with self._ownership.lane(partition):
            await self._failpoints.reach("reap.selected")
            decisions = [decide(TimedOut(), one.facts, now, random.random) for one in late]
            grace = self._timings.kill_grace - timedelta(milliseconds=1)
            ended = await self._ender.end_fenced(partition, decisions, Recheck.TIMED_OUT, grace=grace)
        for one in ended:
            log.info("attempt superseded: over its time", extra={"job_id": one.ref.job_id, "claim": one.ref.claim})
        self._supersede(late, ended)

    async def _end_not_started(self, partition: int, published: Sequence[RunningJob]) -> None:
        """Give jobs back that were published and that no consumer has started in time; no try is burned."""
        now = self._clock.now()
        async with self._ownership.lane(partition):
            decisions = [decide(Undelivered(), one.facts, now, random.random) for one in published]
            ended = await self._ender.end_fenced(partition, decisions, Recheck.NOT_STARTED)
        if ended:
            log.info("published jobs that nobody has started go back", extra={"jobs": len(ended)})

    def _told_in_vain(self, partition: int, overdue: Sequence[RunningJob]) -> list[RunningJob]:
        """Return the attempts that have had `kill_grace` to stop in, by this process's clock as well.

        If the database's clock jumps, or this node has just taken over, nobody may have told them yet.
        """
        now, grace_s = time.monotonic(), self._timings.kill_grace.total_seconds()
        before = self._overdue_since.get(partition, {})
        since = {one.ref: before.get(one.ref, self._told.get(one.ref, now)) for one in overdue}
        self._overdue_since[partition] = since
        latest = self._clock.now() - self._timings.kill_grace
        return [
            one
            for one in overdue
            if one.timeout_at is not None and one.timeout_at < latest and now - since[one.ref] >= grace_s
        ]

    def tell(self, overdue: Sequence[RunningJob]) -> None:
        """Tell workers to stop attempts, again every five seconds."""
        now = time.monotonic()
        self._told = {ref: at for ref, at in self._told.items() if now - at < 60.0}
        for one in overdue:
            if now - self._told.get(one.ref, 0.0) < 5.0:
                continue
            reason = "requested" if one.facts.cancel_requested else "timeout"
            if self._cancels.send(one.ref, one.worker_id, reason):
                self._told[one.ref] = now

    def cancel_now(self, ref: AttemptRef, worker_id: int, reason: str) -> None:
        """Tell the worker of one attempt to stop it."""
        if self._cancels.send(ref, worker_id, reason):
            self._told[ref] = time.monotonic()

    async def _reap_workers(self, partition: int, dead: list[int], as_of: datetime) -> None:
        shards = [shard for shard, _ in self._ownership.of_partition(partition)]
        async with self._ownership.lane(partition):
            # A worker may have come back since it was judged, and been given jobs before its lease was renewed.
            dead = [worker for worker in dead if not self._slots.heard(worker)]
            if not dead:
                return
            found = await self._store.running_of_workers(partition, shards, dead)
            if not found:
                for worker in dead:
                    self._drop_entries(partition, worker)
                return
            await self._failpoints.reach("reap.selected")
            found = [one for one in found if not self._slots.heard(one.worker_id)]
            now = self._clock.now()
            decisions = [decide(WorkerLost(), one.facts, now, random.random) for one in found]
            ended = await self._ender.end_fenced(partition, decisions, Recheck.WORKER_LOST, as_of=as_of)
        log.info("attempts of lost workers given back", extra={"partition": partition, "attempts": len(ended)})
        self._supersede(found, ended)

    def _drop_entries(self, partition: int, worker_id: int) -> None:
        """Forget attempts that the database does not know as running: their end was told to somebody else."""
        for entry in self._registry.of_worker(worker_id):
            if self._ownership.partition_of[entry.shard] == partition:
                self._ender.forget(entry.ref)

    def _supersede(self, found: Sequence[RunningJob], ended: Sequence[Ended]) -> None:
        """Tell workers that may still run the ended ones to stop; a stopped process reads it when it goes on.

        What was found and not ended is still the worker's own.
        """
        refs = {one.ref for one in ended}
        for one in found:
            if one.ref in refs:
                self._cancels.send(one.ref, one.worker_id, "superseded")
