"""Storing submitted jobs: group commit of single ones, and batches.

While one commit is under way, jobs that arrive gather into the next group; on an idle node a job starts its commit at
once. Each caller gets the outcome of its own job after the commit: a job that the database refuses, or a caller that
goes away, harms no other. Jobs without a key go to one shard per group, one that this node owns if it owns any.
"""

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.api.errors import Exhausted, OutcomeUnknown
from server.api.ports import EngineHandle, SubmitTrace
from server.domain.due import DueJob
from server.domain.job import NewJob, Submitted
from server.domain.sharding import make_id, shard_of, shard_of_id
from server.store.database import Database
from server.store.errors import Locked, Refused, StoreError, Unavailable, UnknownOutcome
from server.store.insert import IdBlock, PlacedJob, insert_jobs
from server.store.jobs_read import stored_times

log = logging.getLogger(__name__)

# What a row costs beside its payload, for the limits on bytes.
ROW_BYTES: Final = 500
# For so long after the first lock that was not given, the job behind it is looked for; each look takes a lock timeout.
LOCKS_PATIENCE_S: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitLimits:
    """How much is stored at a time, and how much may wait for it."""

    group_jobs: int = 1000
    group_bytes: int = 4 * 1024 * 1024
    groups_in_flight: int = 2
    batches_in_flight: int = 3
    waiting_jobs: int = 20_000
    waiting_bytes: int = 64 * 1024 * 1024
    waiting_batches: int = 64


class _Waiting:
    """A job whose caller waits."""

    __slots__ = ("answer", "job", "shard", "size")

    def __init__(self, job: NewJob, shard: int | None, answer: "asyncio.Future[Submitted]") -> None:
        self.job = job
        self.shard = shard
        self.size = len(job.payload) + ROW_BYTES
        self.answer = answer

    def succeed(self, submitted: Submitted) -> None:
        if not self.answer.done():
            self.answer.set_result(submitted)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Submitter:
    """Stores jobs and tells the engine. For use from one event loop; `close` waits for what is under way."""

    def __init__(
        self,
        database: Database,
        partition_of: Sequence[int],
        engine: EngineHandle,
        limits: SubmitLimits | None = None,
    ) -> None:
        self._database = database
        self._partition_of = partition_of
        self._engine = engine
        self._limits = limits or SubmitLimits()
        self._ids = IdBlock(database)
        self._turn = itertools.count()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._groups: set[asyncio.Task[None]] = set()
        self._woken = False
        self._batches = asyncio.Semaphore(self._limits.batches_in_flight)
        self._open_batches = 0
        self.trace: SubmitTrace | None = None

    async def submit(self, namespace: str, job: NewJob) -> Submitted:
        """Store one job; return after its commit.

        Raise `Exhausted` if too many wait, `OutcomeUnknown` if the job may be stored or not, `Unavailable`, `Refused`.
        """
        full = len(self._waiting) >= self._limits.waiting_jobs or self._waiting_bytes >= self._limits.waiting_bytes
        if full:
            message = f"{len(self._waiting)} jobs wait to be stored on this node; try again"
            raise Exhausted("SUBMIT_QUEUE_FULL", message)
        loop = asyncio.get_running_loop()
        began_ns = time.time_ns()
        waiting = _Waiting(job, self._shard_of(namespace, job), loop.create_future())
        self._waiting.append(waiting)
        self._waiting_bytes += waiting.size
        if not self._woken:
            # Whatever else arrives in this turn of the loop comes along.
            self._woken = True
            loop.call_soon(self._start_groups)
        submitted = await waiting.answer
        if self.trace is not None:
            self.trace.stored([(job, submitted)], began_ns)
        return submitted

    async def submit_batch(self, namespace: str, jobs: Sequence[NewJob]) -> list[Submitted]:
        """Store jobs in one transaction, all or none; return one result for each, in order. Raise as `submit`."""
        if self._open_batches >= self._limits.waiting_batches:
            raise Exhausted(
                "SUBMIT_QUEUE_FULL", f"{self._open_batches} batches wait to be stored on this node; try again"
            )
        self._open_batches += 1
        began_ns = time.time_ns()
        try:
            async with self._batches:
                placed = await self._place([(job, self._shard_of(namespace, job)) for job in jobs])
                results = await self._store_batch(placed)
        finally:
            self._open_batches -= 1
        self._tell(placed, results)
        if self.trace is not None:
            self.trace.stored(list(zip(jobs, results, strict=True)), began_ns)
        return results

    async def close(self) -> None:
        """Wait until everything that was submitted is stored or refused."""
        while self._groups or self._waiting:
            if not self._groups:
                self._start_groups()
            if self._groups:
                await asyncio.wait(self._groups)

    def _start_groups(self) -> None:
        self._woken = False
        while self._waiting and len(self._groups) < self._limits.groups_in_flight:
            group = self._next_group()
            if group:
                task = asyncio.create_task(self._store_group(group), name="submit-group")
                self._groups.add(task)
                task.add_done_callback(self._group_ended)

    def _group_ended(self, task: "asyncio.Task[None]") -> None:
        self._groups.discard(task)
        self._start_groups()

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < self._limits.group_jobs:
            first = self._waiting[0]
            if group and size + first.size > self._limits.group_bytes:
                break
            self._waiting.popleft()
            self._waiting_bytes -= first.size
            if not first.answer.done():
                group.append(first)
                size += first.size
        return group

    async def _store_group(self, group: list[_Waiting]) -> None:
        try:
            placed = await self._place([(one.job, one.shard) for one in group])
            await self._store(group, placed)
        except Exception as error:
            away = isinstance(error, StoreError)
            if not away:
                log.exception("a group of submits failed", extra={"jobs": len(group)})
            # One error for each caller: an exception that is raised in many tasks would collect all their tracebacks.
            for one in group:
                one.fail(Unavailable(str(error)) if away else RuntimeError(f"the group failed: {error!r}"))

    async def _store(self, group: list[_Waiting], placed: list[PlacedJob], patient_until: float = math.inf) -> None:
        try:
            results = await insert_jobs(self._database, self._partition_of, placed)
        except Refused as error:
            if len(group) == 1:
                group[0].fail(error)
            else:
                await self._store_halves(group, placed, patient_until)
        except Locked as error:
            # One of the dedupe keys may be held by the open transaction of an application.
            now = time.monotonic()
            patient_until = min(patient_until, now + LOCKS_PATIENCE_S)
            if len(group) == 1 or now >= patient_until:
                for one in group:
                    one.fail(Unavailable(str(error)))
            else:
                await self._store_halves(group, placed, patient_until)
        except UnknownOutcome as error:
            await self._settle_group(group, placed, error)
        else:
            self._tell(placed, results)
            for one, result in zip(group, results, strict=True):
                one.succeed(result)

    async def _store_halves(self, group: list[_Waiting], placed: list[PlacedJob], patient_until: float) -> None:
        """Store a group of which nothing is stored: halves lead to the job in its way in a few steps."""
        middle = len(group) // 2
        await self._store(group[:middle], placed[:middle], patient_until)
        await self._store(group[middle:], placed[middle:], patient_until)

    async def _settle_group(self, group: list[_Waiting], placed: list[PlacedJob], error: UnknownOutcome) -> None:
        """Find out what became of a commit that was cut off; what cannot be known fails with `OutcomeUnknown`."""
        extra = {"jobs": len(group), "error": str(error)}
        log.warning("the outcome of the commit of a group is unknown: reading back", extra=extra)
        try:
            known = await self._read_back(placed)
            known |= await self._take_again([one for one in placed if one.job_id not in known])
        except StoreError:
            known = {}
        self._tell(placed, list(known.values()))
        for one, place in zip(group, placed, strict=True):
            result = known.get(place.job_id)
            if result is not None:
                one.succeed(result)
            else:
                one.fail(OutcomeUnknown(repeat_is_safe=place.job.dedupe is not None))

    async def _store_batch(self, placed: list[PlacedJob]) -> list[Submitted]:
        try:
            return await insert_jobs(self._database, self._partition_of, placed)
        except UnknownOutcome as error:
            return await self._settle_batch(placed, error)

    async def _settle_batch(self, placed: list[PlacedJob], error: UnknownOutcome) -> list[Submitted]:
        log.warning(
            "the outcome of a commit is unknown: reading back", extra={"jobs": len(placed), "error": str(error)}
        )
        try:
            known = await self._read_back(placed)
            rest = [one for one in placed if one.job_id not in known]
            if all(one.job.dedupe is not None for one in rest):
                # Either the batch was stored, or it consists of jobs with keys: both may be stored again as they are.
                known |= await self._take_again(rest)
                return [known[one.job_id] for one in placed]
        except StoreError:
            pass
        raise OutcomeUnknown(repeat_is_safe=all(one.job.dedupe is not None for one in placed)) from error

    async def _read_back(self, placed: list[PlacedJob]) -> dict[int, Submitted]:
        times = await stored_times(self._database, [one.job_id for one in placed])
        return {
            job_id: Submitted(job_id=job_id, created=True, due_at=due_at, created_at=created_at)
            for job_id, (due_at, created_at) in times.items()
        }

    async def _take_again(self, placed: list[PlacedJob]) -> dict[int, Submitted]:
        """Store jobs with keys a second time under the same ids: a key that leads to its own id was stored before."""
        keyed = [one for one in placed if one.job.dedupe is not None]
        if not keyed:
            return {}
        results = await insert_jobs(self._database, self._partition_of, keyed)
        known = {one.job_id: result for one, result in zip(keyed, results, strict=True)}
        own = [one for one in keyed if known[one.job_id].job_id == one.job_id and not known[one.job_id].created]
        return known | (await self._read_back(own) if own else {})

    async def _place(self, jobs: list[tuple[NewJob, int | None]]) -> list[PlacedJob]:
        numbers = await self._ids.take(len(jobs))
        any_shard = self._next_shard()
        return [
            PlacedJob(make_id(number, any_shard if shard is None else shard), job)
            for number, (job, shard) in zip(numbers, jobs, strict=True)
        ]

    def _next_shard(self) -> int:
        turn = next(self._turn)
        owned = self._engine.owned_shards()
        return owned[turn % len(owned)] if owned else turn % len(self._partition_of)

    def _shard_of(self, namespace: str, job: NewJob) -> int | None:
        """Return the shard that a job's key decides; None if it has no key."""
        if job.concurrency_key is not None:
            return shard_of(len(self._partition_of), namespace, job.concurrency_key)
        if job.dedupe is not None:
            return shard_of(len(self._partition_of), namespace, job.dedupe.key)
        return None

    def _tell(self, placed: Sequence[PlacedJob], results: Sequence[Submitted]) -> None:
        """Tell the engine of the jobs that were created."""
        jobs = {one.job_id: one.job for one in placed}
        added = [
            DueJob(
                jobs[result.job_id].priority,
                result.due_at,
                result.job_id,
                shard_of_id(result.job_id),
                jobs[result.job_id].handler_id,
            )
            for result in results
            if result.created and result.due_at is not None
        ]
        if added:
            self._engine.jobs_added(added)
