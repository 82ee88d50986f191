"""What this node knows of due work: a cache in front of the due index of the database.

Jobs of the near future wait in the timer wheel; due ones in a heap per handler, the most urgent first. The cache holds
a bounded number of jobs per (shard, handler, priority): a *marker* in the wheel says from when on there may be more
than it knows, and a pair (shard, handler) is *behind* if more due jobs exist than it knows. It may be wrong in any way
without harm: a claim checks everything again, and the sweep of the database repairs what was missed.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from server.domain.due import NO_BOUND, DueJob
from server.engine.clock import tick_of
from server.engine.wheel import TimerWheel, WheelFull

# Jobs per priority of a pair that a peek reads.
PEEK_LIMIT: Final = 64
# Due jobs per priority of a pair that are remembered.
READY_LIMIT: Final = 512
# Jobs that lie further ahead are not remembered one by one, or a million of them would displace those of the next
# seconds: their pair is read this much before the earliest of them is due.
HORIZON_MS: Final = 60_000
READ_AHEAD_MS: Final = 1_000

PairKey: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class Pair:
    """What is known of one (shard, handler): lower bounds and numbers of remembered due jobs, by priority."""

    bounds: list[datetime] = field(default_factory=lambda: [NO_BOUND] * 5)
    ready: list[int] = field(default_factory=lambda: [0] * 5)
    behind: bool = False
    peeking: bool = False

    def reach(self, job: DueJob) -> None:
        """Bring the lower bound of the job's priority down to it, if it lies above."""
        if job.due_at < self.bounds[job.priority - 1]:
            self.bounds[job.priority - 1] = job.due_at


@dataclass(slots=True)
class Take:
    """What to claim from one shard for a handler: the jobs that are known, and room for more."""

    jobs: list[DueJob] = field(default_factory=list)
    extra: int = 0

    @property
    def count(self) -> int:
        """How many jobs may be claimed."""
        return len(self.jobs) + self.extra


class DueIndex:
    """Due work by handler, and the timer wheel of what becomes due."""

    def __init__(self, *, capacity: int = 200_000) -> None:
        self._wheel: TimerWheel[DueJob | PairKey] = TimerWheel(capacity=capacity)
        self._ready: dict[int, list[DueJob]] = {}
        self._ready_ids: set[int] = set()
        self._pairs: dict[PairKey, Pair] = {}
        self._behind: dict[int, set[int]] = {}
        self._to_peek: set[PairKey] = set()

    def __len__(self) -> int:
        return len(self._wheel) + len(self._ready_ids)

    def pair(self, shard: int, handler_id: int) -> Pair:
        """Return what is known of a pair."""
        found = self._pairs.get((shard, handler_id))
        if found is None:
            found = self._pairs[(shard, handler_id)] = Pair()
        return found

    def add(self, jobs: Iterable[DueJob], now_ms: int) -> None:
        """Take in pending jobs that were told of or read."""
        for job in jobs:
            pair = self.pair(job.shard, job.handler_id)
            pair.reach(job)
            tick = tick_of(job.due_at)
            if tick <= now_ms:
                self._wheel.cancel(job.job_id)
                self._make_ready(job, pair)
                continue
            self._unready(job)
            if tick - now_ms <= HORIZON_MS:
                self._wait(job.job_id, tick, job)
            else:
                self._wheel.cancel(job.job_id)
                self._wait_for_pair((job.shard, job.handler_id), tick - READ_AHEAD_MS)

    def swept(self, jobs: Iterable[DueJob], now_ms: int) -> None:
        """Take in what a sweep found: the earliest job of each (shard, handler, priority)."""
        for job in jobs:
            pair = self.pair(job.shard, job.handler_id)
            pair.reach(job)
            if job.job_id in self._ready_ids or pair.behind or self._is_awaited(job):
                continue
            self.add((job,), now_ms)
            self._to_peek.add((job.shard, job.handler_id))

    def peeked(self, pairs: Sequence[PairKey], jobs: Sequence[DueJob], now_ms: int) -> None:
        """Take in what a peek of these pairs found, per priority in order of due time."""
        for key in pairs:
            self.pair(*key).peeking = False
            self._set_behind(key, behind=False)
        self.add(jobs, now_ms)
        counts: dict[tuple[int, int, int], int] = {}
        for job in jobs:
            group = (job.shard, job.handler_id, job.priority)
            counts[group] = counts.get(group, 0) + 1
            if counts[group] < PEEK_LIMIT:
                continue
            key, tick = (job.shard, job.handler_id), tick_of(job.due_at)
            if tick <= now_ms:
                self._set_behind(key, behind=True)
            else:
                known = self._wheel.tick_of(key)
                self._wait(key, tick if known is None else min(known, tick), key)

    def advance(self, now_ms: int) -> None:
        """Move what has become due to the ready heaps."""
        for item in self._wheel.advance(now_ms):
            if not isinstance(item, DueJob):
                self._to_peek.add(item)
            elif (pair := self._pairs.get((item.shard, item.handler_id))) is not None:
                self._make_ready(item, pair)

    def next_tick(self) -> int | None:
        """Return the earliest instant at which something becomes due, in milliseconds since 1970."""
        return self._wheel.next_tick()

    def pairs_to_peek(self) -> list[PairKey]:
        """Return the pairs that should be read now, and remember that they are being read."""
        wanted = [key for key in self._to_peek if not self.pair(*key).peeking]
        self._to_peek.difference_update(wanted)
        for key in wanted:
            self._pairs[key].peeking = True
        return wanted

    def peek_failed(self, pairs: Iterable[PairKey]) -> None:
        """Note that pairs were not read after all; the next sweep brings them up again."""
        for key in pairs:
            self.pair(*key).peeking = False

    def handlers_with_work(self) -> list[int]:
        """Return the handlers that have due jobs."""
        return list(self._ready.keys() | self._behind.keys())

    def waiting(self, handler_id: int) -> int:
        """Return about how many due jobs of a handler wait, as far as this node knows."""
        return len(self._ready.get(handler_id, ())) + PEEK_LIMIT * len(self._behind.get(handler_id, ()))

    def take(self, handler_id: int, count: int, busy: Collection[int]) -> dict[int, Take]:
        """Take up to `count` due jobs of a handler, by shard, the most urgent first.

        Jobs of `busy` shards keep their turn: they use up the count but stay. What is left of the count goes to pairs
        that are behind.
        """
        takes: dict[int, Take] = {}
        heap = self._ready.get(handler_id, [])
        kept = []
        while heap and count > 0:
            job = heappop(heap)
            if job.job_id not in self._ready_ids:
                continue
            count -= 1
            if job.shard in busy:
                kept.append(job)
                continue
            self._unready(job)
            # A claim that was under way when the job was told of may have raised the bound past it.
            self.pair(job.shard, job.handler_id).reach(job)
            takes.setdefault(job.shard, Take()).jobs.append(job)
        for job in kept:
            heappush(heap, job)
        if not heap:
            self._ready.pop(handler_id, None)
        behind = [shard for shard in self._behind.get(handler_id, ()) if shard not in busy]
        for position, shard in enumerate(behind):
            share = -(-count // (len(behind) - position))
            if share > 0:
                takes.setdefault(shard, Take()).extra = share
                count -= share
        return takes

    def claimed(
        self,
        shard: int,
        handler_id: int,
        take: Take,
        jobs: Sequence[DueJob],
        *,
        cut: bool,
        now: datetime,
        progress: bool = True,
    ) -> None:
        """Note what a claim of a pair has brought.

        `cut` says that it may have been cut short by its size, `now` is the database clock of the claim: jobs that were
        looked for too early wait again. Without `progress`, what is due is held by somebody else: only the next sweep
        brings it up again.
        """
        pair = self.pair(shard, handler_id)
        got: set[int] = set()
        for job in jobs:
            got.add(job.job_id)
            self._unready(job)
            self._wheel.cancel(job.job_id)
            if job.due_at > pair.bounds[job.priority - 1]:
                pair.bounds[job.priority - 1] = job.due_at
        full = len(jobs) >= take.count
        missed = [job for job in take.jobs if job.job_id not in got and (full or job.due_at > now)]
        self.add(missed, int(now.timestamp() * 1000))
        if cut or (pair.behind and (not full or not any(pair.ready))):
            if progress:
                self._to_peek.add((shard, handler_id))
            if not full and not cut:
                self._set_behind((shard, handler_id), behind=False)

    def put_back(self, shard: int, handler_id: int, take: Take) -> None:
        """Undo a take whose claim was not made."""
        pair = self.pair(shard, handler_id)
        for job in take.jobs:
            self._make_ready(job, pair)

    def forget_shard(self, shard: int) -> None:
        """Drop everything about a shard, but for timers of the near future, which come to nothing."""
        for key in [key for key in self._pairs if key[0] == shard]:
            self._set_behind(key, behind=False)
            self._wheel.cancel(key)
            self._to_peek.discard(key)
            del self._pairs[key]
        for handler_id, heap in list(self._ready.items()):
            gone = {job.job_id for job in heap if job.shard == shard}
            if not gone:
                continue
            self._ready_ids -= gone
            heap = [job for job in heap if job.shard != shard]
            heapify(heap)
            self._ready[handler_id] = heap
            if not heap:
                del self._ready[handler_id]

    def _make_ready(self, job: DueJob, pair: Pair) -> None:
        if job.job_id in self._ready_ids:
            return
        if pair.ready[job.priority - 1] >= READY_LIMIT:
            self._set_behind((job.shard, job.handler_id), behind=True)
            return
        pair.ready[job.priority - 1] += 1
        self._ready_ids.add(job.job_id)
        heappush(self._ready.setdefault(job.handler_id, []), job)

    def _unready(self, job: DueJob) -> None:
        """Forget that a job is ready; its entry in the heap is skipped when it comes up."""
        if job.job_id in self._ready_ids:
            self._ready_ids.discard(job.job_id)
            self.pair(job.shard, job.handler_id).ready[job.priority - 1] -= 1

    def _is_awaited(self, job: DueJob) -> bool:
        """Whether the wheel brings the job up in time: by itself, or by a reading of its pair."""
        keys = (job.job_id, (job.shard, job.handler_id))
        ticks = [tick for tick in map(self._wheel.tick_of, keys) if tick is not None]
        return bool(ticks) and min(ticks) <= tick_of(job.due_at)

    def _wait(self, key: int | PairKey, tick: int, item: DueJob | PairKey) -> None:
        try:
            self._wheel.insert(key, tick, item)
        except WheelFull:
            if isinstance(item, DueJob):
                self._wait_for_pair((item.shard, item.handler_id), tick)

    def _wait_for_pair(self, pair: PairKey, tick: int) -> None:
        """Remember only that the pair has to be read at `tick`; if even that has no room, the sweep will find it."""
        known = self._wheel.tick_of(pair)
        if known is None or tick < known:
            self._wait(pair, tick, pair)

    def _set_behind(self, key: PairKey, *, behind: bool) -> None:
        shard, handler_id = key
        self.pair(shard, handler_id).behind = behind
        if behind:
            self._behind.setdefault(handler_id, set()).add(shard)
        elif (shards := self._behind.get(handler_id)) is not None:
            shards.discard(shard)
            if not shards:
                del self._behind[handler_id]
