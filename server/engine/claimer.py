"""The claimer: turns due jobs and free slots into running attempts.

It wakes when something becomes due, when a slot becomes free, or on a nudge, and never on a blind tick. Each turn
reserves slots for the most urgent known jobs of every handler and starts one claim per partition, in the partition's
lane. The claim may bring other jobs than those that were known; what counts is what it returns.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from server.domain.due import ClaimResult, DueJob, Probe
from server.domain.job import AttemptRef, ClaimedJob
from server.engine.clock import DatabaseClock
from server.engine.deadlines import Deadlines
from server.engine.demand import Demand
from server.engine.due_index import PEEK_LIMIT, DueIndex, PairKey, Take
from server.engine.failpoints import Failpoints
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.ports import DispatchTrace, DueStore, OutcomeUnknown, StoreUnavailable
from server.engine.registry import Registry, RunningEntry
from server.engine.slots import SlotBook, WorkerSession
from server.engine.tally import Tally

log = logging.getLogger(__name__)

# Slots that one claim fills at most.
MAX_CLAIM_JOBS: Final = 1000
# Jobs that a claim looks at beyond its slots while it meets jobs behind full concurrency keys.
LOOK_PAST: Final = 500
# A claim that returned this many bytes may have been cut short by its cap.
CUT_BYTES: Final = 1 << 19

LATENESS_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0)


class Recoverer(Protocol):
    """Settles a partition after a claim whose outcome is unknown; called with the lane held."""

    async def __call__(self, partition: int, shards: Sequence[int]) -> None:
        """Return when the database says for certain which jobs run."""


@dataclass(slots=True)
class Part:
    """What one claim asks of one (shard, handler)."""

    shard: int
    handler_id: int
    take: Take
    sessions: list[WorkerSession] = field(default_factory=list)


class Claimer:
    """Claims due jobs of the owned shards for connected workers; see the module."""

    def __init__(
        self,
        *,
        store: DueStore,
        ownership: Ownership,
        slots: SlotBook,
        index: DueIndex,
        registry: Registry,
        deadlines: Deadlines,
        clock: DatabaseClock,
        failpoints: Failpoints,
        recover: Recoverer,
        undelivered: Callable[[Sequence[AttemptRef]], None],
        demand: Demand,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._slots = slots
        self._index = index
        self._registry = registry
        self._deadlines = deadlines
        self._clock = clock
        self._failpoints = failpoints
        self._recover = recover
        self._undelivered = undelivered
        self._demand = demand
        self._wake = asyncio.Event()
        self._busy: set[int] = set()
        self._crowded: set[int] = set()
        """Partitions whose latest claim met jobs behind full concurrency keys."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoff = Backoff()
        self._resume_at = 0.0
        self.paused_handlers: set[int] = set()
        self.trace: DispatchTrace | None = None
        self.claims = 0
        self.claimed_jobs = 0
        self.dispatched_jobs = 0
        """Claimed jobs that a worker's stream took."""
        self.lateness = Tally(LATENESS_BOUNDS_S)
        """Seconds from the due time of jobs to their claim."""

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def add(self, jobs: Sequence[DueJob]) -> None:
        """Take in jobs that became pending in owned shards."""
        owned = [job for job in jobs if job.shard in self._ownership.epochs]
        if owned:
            self._index.add(owned, self._clock.now_ms())
            self._wake.set()

    async def run(self) -> None:
        """Claim for ever."""
        while True:
            await self._sleep()
            try:
                self.turn()
            except Exception:
                log.exception("claimer turn failed")
                await asyncio.sleep(self._backoff.next_s())

    async def stop(self) -> None:
        """Wait for the claims that are under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)

    async def _sleep(self) -> None:
        tick = self._index.next_tick()
        timeout = 60.0 if tick is None else max(0.0005, (tick - self._clock.now_ms()) / 1000)
        if (held := self._resume_at - time.monotonic()) > 0:
            await asyncio.sleep(held)
        try:
            async with asyncio.timeout(min(timeout, 60.0)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def turn(self) -> None:
        """Start every claim and peek that can be started now."""
        self._index.advance(self._clock.now_ms())
        plans: dict[int, list[Part]] = {}
        busy = self._busy_shards()
        for handler_id in self._index.handlers_with_work():
            if handler_id in self.paused_handlers:
                continue
            free = min(self._slots.free(handler_id), MAX_CLAIM_JOBS)
            if free:
                self._plan(handler_id, free, busy, plans)
            if free < MAX_CLAIM_JOBS:
                self._demand.look(handler_id)
        for partition, parts in plans.items():
            self._start(partition, self._claim(partition, parts))
        peeks: dict[int, list[PairKey]] = {}
        for key in self._index.pairs_to_peek():
            peeks.setdefault(self._ownership.partition_of[key[0]], []).append(key)
        for partition, keys in peeks.items():
            self._start(partition, self._peek(partition, keys))

    def _busy_shards(self) -> set[int]:
        owned = self._ownership
        busy = [one for one in owned.served_partitions() if one in self._busy or owned.lane(one).locked()]
        return {shard for partition in busy for shard, _ in owned.of_partition(partition)}

    def _plan(self, handler_id: int, free: int, busy: set[int], plans: dict[int, list[Part]]) -> None:
        takes = self._index.take(handler_id, free, busy)
        sessions = self._slots.reserve(handler_id, sum(take.count for take in takes.values()))
        for shard, take in takes.items():
            mine, sessions = sessions[: take.count], sessions[take.count :]
            part = Part(shard, handler_id, take, mine)
            if mine and shard in self._ownership.epochs:
                plans.setdefault(self._ownership.partition_of[shard], []).append(part)
            else:
                self._give_up(part)
        self._slots.release(handler_id, sessions)

    def _start(self, partition: int, work: Awaitable[None]) -> None:
        self._busy.add(partition)

        async def guarded() -> None:
            try:
                async with self._ownership.lane(partition):
                    await work
            except Exception:
                log.exception("claim failed", extra={"partition": partition})
            finally:
                self._busy.discard(partition)
                self._wake.set()

        task = asyncio.create_task(guarded(), name=f"claim-{partition}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _peek(self, partition: int, keys: list[PairKey]) -> None:
        pairs = [(shard, handler, tuple(self._index.pair(shard, handler).bounds)) for shard, handler in keys]
        try:
            jobs = await self._store.peek(partition, pairs, PEEK_LIMIT)
        except (StoreUnavailable, OutcomeUnknown) as error:
            self._index.peek_failed(keys)
            self._hold_off(error)
            return
        except Exception:
            self._index.peek_failed(keys)
            self._hold_off(None)
            raise
        owned = [job for job in jobs if job.shard in self._ownership.epochs]
        self._index.peeked([key for key in keys if key[0] in self._ownership.epochs], owned, self._clock.now_ms())

    async def _claim(self, partition: int, parts: list[Part]) -> None:
        parts = self._still_owned(parts)
        if not parts:
            return
        shards = sorted({part.shard for part in parts})
        epochs = [(shard, self._ownership.epochs[shard]) for shard in shards]
        probes = [
            Probe(
                part.shard,
                part.handler_id,
                [session.worker_id for session in part.sessions],
                tuple(self._index.pair(part.shard, part.handler_id).bounds),
            )
            for part in parts
        ]
        sent = time.monotonic()
        try:
            look_past = LOOK_PAST if partition in self._crowded else 0
            result = await self._store.claim(partition, epochs, probes, look_past=look_past)
        except StoreUnavailable as error:
            for part in parts:
                self._give_up(part)
            self._hold_off(error)
            return
        except OutcomeUnknown as error:
            for part in parts:
                self._give_up(part)
            log.warning("outcome of a claim is unknown", extra={"partition": partition, "error": str(error)})
            await self._recover(partition, shards)
            return
        except Exception:
            for part in parts:
                self._give_up(part)
            self._hold_off(None)
            raise
        self._backoff.reset()
        (self._crowded.add if result.parked else self._crowded.discard)(partition)
        if result.now is not None:
            self._clock.observe(result.now, sent, time.monotonic())
        await self._failpoints.reach("claim.committed")
        self._ownership.check(epochs, result.live_shards)
        if self.trace is not None and result.jobs:
            self.trace.dispatched(result.jobs, time.monotonic() - sent)
        self._hand_over(parts, result)

    def _still_owned(self, parts: list[Part]) -> list[Part]:
        kept = []
        for part in parts:
            if part.shard in self._ownership.epochs:
                kept.append(part)
            else:
                self._slots.release(part.handler_id, part.sessions)
        return kept

    def _give_up(self, part: Part) -> None:
        self._slots.release(part.handler_id, part.sessions)
        if part.shard in self._ownership.epochs:
            self._index.put_back(part.shard, part.handler_id, part.take)

    def _hold_off(self, error: Exception | None) -> None:
        if not self._backoff.failures and error is not None:
            log.warning("claims wait for the database", extra={"error": str(error)})
        self._resume_at = time.monotonic() + self._backoff.next_s()

    def _hand_over(self, parts: list[Part], result: ClaimResult) -> None:
        """Bind the claimed jobs to the reserved slots, send them, and give back the slots that were not filled."""
        self.claims += 1
        self.claimed_jobs += len(result.jobs)
        if result.now is not None:
            for job in result.jobs:
                self.lateness.observe((result.now - job.due_at).total_seconds())
        by_pair: dict[PairKey, list[ClaimedJob]] = {}
        for job in result.jobs:
            by_pair.setdefault((job.job_id & 0xFFF, job.handler_id), []).append(job)
        cut = sum(len(job.payload) for job in result.jobs) >= CUT_BYTES
        outgoing: dict[WorkerSession, list[ClaimedJob]] = {}
        unfilled: list[tuple[int, list[WorkerSession]]] = []
        for part in parts:
            jobs = by_pair.get((part.shard, part.handler_id), [])
            self._note(part, jobs, result, cut)
            unfilled.append((part.handler_id, self._bind(part, jobs, outgoing)))
            self._demand.served(part.handler_id, len(jobs))
        for session, jobs in outgoing.items():
            if session.link.send_jobs(jobs):
                self.dispatched_jobs += len(jobs)
            else:
                self._undelivered([job.ref for job in jobs])
            session.settle()
        for handler_id, sessions in unfilled:
            self._slots.release(handler_id, sessions)

    def _note(self, part: Part, jobs: list[ClaimedJob], result: ClaimResult, cut: bool) -> None:
        if part.shard not in self._ownership.epochs or result.now is None:
            return
        due = [DueJob(job.priority, job.due_at, job.job_id, part.shard, part.handler_id) for job in jobs]
        progress = bool(jobs) or bool(result.parked)
        self._index.claimed(part.shard, part.handler_id, part.take, due, cut=cut, now=result.now, progress=progress)

    def _bind(
        self, part: Part, jobs: list[ClaimedJob], outgoing: dict[WorkerSession, list[ClaimedJob]]
    ) -> list[WorkerSession]:
        """Bind the jobs of a part to its slots; return the slots that are left."""
        free: dict[int, list[WorkerSession]] = {}
        for session in part.sessions:
            free.setdefault(session.worker_id, []).append(session)
        for job in jobs:
            session = free[job.worker_id].pop()
            self._slots.hand_over(session, job.handler_id, job.ref)
            entry = RunningEntry(
                ref=job.ref,
                shard=part.shard,
                handler_id=job.handler_id,
                worker_id=job.worker_id,
                claim_epoch=job.epoch,
                timeout_at=job.timeout_at,
                session_id=session.session_id,
                key=None if job.concurrency_key is None else (job.namespace_id, job.concurrency_key),
            )
            self._registry.add(entry)
            self._deadlines.watch(entry)
            outgoing.setdefault(session, []).append(job)
        return [session for sessions in free.values() for session in sessions]
