"""The keeper: goes round the owned partitions and repairs what no nudge told of.

Each partition gets its turn every sweep interval, staggered, so that the database sees an even trickle. A turn reads,
and writes only if the reading says so: earliest due jobs, expired jobs, overdue attempts, parked jobs with room. Less
often it compares the registry with the running rows, and removes old dedupe keys. A partition in which nothing is
pending and nothing runs gets only every fourth turn, for looking at nothing is not free, unless a glance at all of
them, once per round, finds that a job has come there that nobody told of: applications submit by SQL.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from server.engine.adoption import Adoption
from server.engine.claimer import Claimer
from server.engine.clock import DatabaseClock
from server.engine.due_index import DueIndex
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.parking import Parking
from server.engine.ports import EngineStore, OutcomeUnknown, StoreUnavailable
from server.engine.reaper import Reaper
from server.engine.registry import Registry
from server.engine.timings import EngineTimings
from server.engine.waiters import Waiters

log = logging.getLogger(__name__)

_IDLE_TURNS: Final = 4


class Keeper:
    """Goes round the partitions; see the module."""

    def __init__(
        self,
        *,
        store: EngineStore,
        ownership: Ownership,
        registry: Registry,
        index: DueIndex,
        claimer: Claimer,
        reaper: Reaper,
        parking: Parking,
        adoption: Adoption,
        waiters: Waiters,
        clock: DatabaseClock,
        timings: EngineTimings,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._registry = registry
        self._index = index
        self._claimer = claimer
        self._reaper = reaper
        self._parking = parking
        self._adoption = adoption
        self._waiters = waiters
        self._clock = clock
        self._timings = timings
        self._asked: set[int] = set()
        self._wake = asyncio.Event()
        self._cleaned: dict[int, float] = {}
        self._reconciled: dict[int, float] = {}
        self._idle_until: dict[int, float] = {}

    def look_at(self, partition: int) -> None:
        """Give a partition a turn now."""
        self._asked.add(partition)
        self._wake.set()

    async def run(self) -> None:
        """Go round for ever."""
        backoff = Backoff()
        queue: list[int] = []
        while True:
            partition = None
            try:
                if not self._asked and not queue:
                    queue = self._ownership.served_partitions()
                    await self._glance(queue)
                asked = bool(self._asked)
                partition = self._asked.pop() if asked else queue.pop(0) if queue else None
                if partition is not None and (asked or time.monotonic() >= self._idle_until.get(partition, 0.0)):
                    await self.turn(partition)
                    backoff.reset()
            except (StoreUnavailable, OutcomeUnknown) as error:
                if not backoff.failures:
                    log.warning("sweeps wait for the database", extra={"error": str(error)})
                await asyncio.sleep(backoff.next_s())
            except Exception:
                log.exception("sweep failed", extra={"partition": partition})
                await asyncio.sleep(backoff.next_s())
            await self._pause()

    async def _glance(self, served: Sequence[int]) -> None:
        """Give idle partitions a turn in which something has come."""
        now = time.monotonic()
        resting = {partition for partition in served if now < self._idle_until.get(partition, 0.0)}
        if resting:
            # Asked of all that are served, for a statement whose text stays the same is planned once.
            self._asked |= resting.intersection(await self._store.pending_partitions(served))

    async def turn(self, partition: int) -> None:
        """Look through one partition."""
        async with self._ownership.lane(partition):
            owned = dict(self._ownership.of_partition(partition))
            if not owned:
                return
            jobs = await self._store.sweep(partition)
            self._index.swept([job for job in jobs if job.shard in owned], self._clock.now_ms())
        self._claimer.wake()
        expired, overdue, parked = await self._store.attention(partition, sorted(owned))
        idle = not (jobs or expired or overdue or parked or any(map(self._registry.of_shard, owned)))
        # Half a turn less, so that the fourth is not missed by a hair.
        rest_s = self._timings.sweep.total_seconds() * (_IDLE_TURNS - 0.5)
        self._idle_until[partition] = time.monotonic() + rest_s if idle else 0.0
        if expired:
            await self._expire(partition)
        if overdue:
            await self._reaper.end_overdue(partition)
        if parked:
            await self._parking.sweep(partition)
        if self._is_time(self._reconciled, partition, self._timings.audit.total_seconds() * 3):
            await self._reconcile(partition)
        if self._is_time(self._cleaned, partition, self._timings.clean.total_seconds()):
            await self._clean(partition)

    async def _expire(self, partition: int) -> None:
        async with self._ownership.lane(partition):
            epochs = self._ownership.of_partition(partition)
            failed, live = await self._store.expire(partition, epochs)
            self._ownership.check(epochs, live)
        self._waiters.finished(failed)
        if failed:
            log.info("pending jobs failed: their time is over", extra={"partition": partition, "jobs": len(failed)})

    async def _reconcile(self, partition: int) -> None:
        async with self._ownership.lane(partition):
            shards = [shard for shard, _ in self._ownership.of_partition(partition)]
            for shard, rows in (await self._store.running_of_shards(partition, shards)).items():
                await self._adoption.reconcile(partition, shard, rows)

    async def _clean(self, partition: int) -> None:
        async with self._ownership.lane(partition):
            epochs = self._ownership.of_partition(partition)
            self._ownership.check(epochs, await self._store.clean_keys(partition, epochs))

    def _is_time(self, done_at: dict[int, float], partition: int, interval_s: float) -> bool:
        now = time.monotonic()
        if now - done_at.get(partition, 0.0) < interval_s:
            return False
        done_at[partition] = now
        return True

    async def _pause(self) -> None:
        served = max(1, len(self._ownership.served_partitions()))
        if self._asked:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(self._timings.sweep.total_seconds() / served):
                await self._wake.wait()
        except TimeoutError:
            pass
