"""The firer: turns due schedules of the owned shards into jobs.

For each owned shard the timing wheel holds the earliest `next_fire_at`, so memory grows with the shards, however many
schedules they hold. When it comes, the due schedules are read, the domain decides on each, and one fenced statement per
batch applies the decisions. It compares what was read, so a schedule that was paused, changed or fired in between is
left alone, and a statement whose outcome is unknown is simply decided on again.

Each partition is served by one task at a time. One whose database work fails is tried again after a pause, while the
others go on. Every partition is re-read every few seconds, in turn, for nudges that were lost. After an outage the
schedules are due as they were, and their catch-up policies decide.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from server.domain.due import DueJob
from server.domain.firing import SkipReason
from server.engine.clock import DatabaseClock, tick_of
from server.engine.failpoints import Failpoints
from server.engine.fire_round import FireRound
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.ports import OutcomeUnknown, StoreUnavailable
from server.engine.ports_firer import FirerStore
from server.engine.wheel import TimerWheel

log = logging.getLogger(__name__)

# Partitions that are served at the same time: the firer shares its connections with the claims.
CONCURRENCY: Final = 2
_MIN_SLEEP_S: Final = 0.0005


class Firer:
    """Fires the schedules of the owned shards; see the module. For use from one event loop.

    `on_jobs` is told of the jobs of each commit; `sweep_s` is the time in which every partition is re-read once.
    """

    def __init__(
        self,
        *,
        store: FirerStore,
        ownership: Ownership,
        clock: DatabaseClock,
        on_jobs: Callable[[Sequence[DueJob]], None],
        failpoints: Failpoints | None = None,
        sweep_s: float = 5.0,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._round = FireRound(
            store=store, ownership=ownership, clock=clock, failpoints=failpoints or Failpoints(), on_jobs=on_jobs
        )
        self._sweep_pause_s = sweep_s / ownership.partitions
        self._sweep_at = time.monotonic() + self._sweep_pause_s
        self._swept = -1
        self._wheel: TimerWheel[int] = TimerWheel(capacity=len(ownership.partition_of))
        self._parts = [_Part() for _ in range(ownership.partitions)]
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(CONCURRENCY)
        self._tasks: set[asyncio.Task[None]] = set()
        self._away = False

    @property
    def fired_jobs(self) -> int:
        """Jobs made since the start."""
        return self._round.fired_jobs

    @property
    def skipped_firings(self) -> Mapping[SkipReason, int]:
        """Firings skipped since the start, by reason."""
        return self._round.skipped

    def shard_started(self, shard: int) -> None:
        """This node owns the shard from now on."""
        self._part_of(shard).look.add(shard)
        self._wake.set()

    def shard_stopped(self, shard: int) -> None:
        """This node owns the shard no more."""
        self._wheel.cancel(shard)

    def schedules_changed(self, shard: int, next_fire_at: datetime | None) -> None:
        """Take in that a schedule was created or changed and fires next at this time; ignored if not owned here."""
        if shard not in self._ownership.epochs:
            return
        self._round.retry_set_aside(shard)
        if next_fire_at is not None:
            self._remind(shard, tick_of(next_fire_at))

    async def run(self) -> None:
        """Fire for ever."""
        backoff = Backoff()
        while True:
            await self._sleep()
            try:
                self.turn()
                backoff.reset()
            except Exception:
                log.exception("firer turn failed")
                await asyncio.sleep(backoff.next_s())

    async def stop(self) -> None:
        """Wait for the statements that are under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)

    async def run_once(self) -> None:
        """Look at every owned shard and fire what is due, until nothing is or the database is away."""
        for shard in self._ownership.epochs:
            self._part_of(shard).look.add(shard)
        while True:
            self.turn()
            if not self._tasks:
                return
            await asyncio.wait(set(self._tasks))

    def turn(self) -> None:
        """Start serving every partition that has something to do and is not being served."""
        for shard in self._wheel.advance(self._clock.now_ms()):
            self._part_of(shard).fire.add(shard)
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + self._sweep_pause_s
            self._sweep()
        for partition, part in enumerate(self._parts):
            if part.waits and now >= part.resume_at:
                self._start(partition, part)

    def _part_of(self, shard: int) -> "_Part":
        return self._parts[self._ownership.partition_of[shard]]

    def _remind(self, shard: int, tick: int) -> None:
        """Set the timer of a shard to a tick, unless it is earlier already."""
        part = self._part_of(shard)
        if part.busy:
            part.reminders[shard] = min(tick, part.reminders.get(shard, tick))
            return
        known = self._wheel.tick_of(shard)
        if known is None or tick < known:
            self._wheel.insert(shard, tick, shard)
            self._wake.set()

    def _sweep(self) -> None:
        """Have the next partition with owned shards re-read."""
        served = self._ownership.served_partitions()
        if served:
            self._swept = next((number for number in served if number > self._swept), served[0])
            self._parts[self._swept].look.update(shard for shard, _ in self._ownership.of_partition(self._swept))

    async def _sleep(self) -> None:
        now = time.monotonic()
        until = min([self._sweep_at, *(part.resume_at for part in self._parts if part.waits)])
        if (tick := self._wheel.next_tick()) is not None:
            until = min(until, now + (tick - self._clock.now_ms()) / 1000)
        try:
            async with asyncio.timeout(max(_MIN_SLEEP_S, until - now)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _start(self, partition: int, part: "_Part") -> None:
        fire, look = part.take()
        task = asyncio.create_task(self._guarded(partition, part, fire, look), name=f"fire-{partition}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, partition: int, part: "_Part", fire: set[int], look: set[int]) -> None:
        try:
            async with self._room:
                moved = await self._round.fire_due(partition, fire)
                await self._look(partition, fire | look)
            self._went_well(part, moved)
        except Exception as error:
            part.fire |= fire
            part.look |= look
            self._failed(partition, part, error)
        finally:
            part.busy = False
            for shard, tick in part.take_reminders():
                self._remind(shard, tick)
            self._wake.set()

    async def _look(self, partition: int, shards: Iterable[int]) -> None:
        """Set the timers of shards to what the database says."""
        owned = self._round.owned(shards)
        if not owned:
            return
        sent = time.monotonic()
        times = await self._store.next_fire_times(partition, owned, without=self._round.set_aside())
        if times.now is not None:
            self._clock.observe(times.now, sent, time.monotonic())
        for shard in self._round.owned(owned):
            next_fire_at = times.by_shard.get(shard)
            if next_fire_at is None:
                self._wheel.cancel(shard)
            else:
                self._wheel.insert(shard, tick_of(next_fire_at), shard)

    def _went_well(self, part: "_Part", moved: bool) -> None:
        if self._away:
            self._away = False
            log.info("firing goes on")
        if moved:
            part.backoff.reset()
        else:
            part.resume_at = time.monotonic() + part.backoff.next_s()

    def _failed(self, partition: int, part: "_Part", error: Exception) -> None:
        if not isinstance(error, StoreUnavailable | OutcomeUnknown):
            log.error("firing failed", extra={"partition": partition}, exc_info=error)
        elif not self._away:
            self._away = True
            log.warning("firing waits for the database", extra={"partition": partition, "error": str(error)})
        part.resume_at = time.monotonic() + part.backoff.next_s()


class _Part:
    """What is to be done in a partition: shards to fire and to look at, and timers set while it was being served."""

    def __init__(self) -> None:
        self.fire: set[int] = set()
        self.look: set[int] = set()
        self.reminders: dict[int, int] = {}
        self.busy = False
        self.resume_at = 0.0
        self.backoff = Backoff()

    @property
    def waits(self) -> bool:
        """Whether it has something to do and is not being served."""
        return not self.busy and bool(self.fire or self.look)

    def take(self) -> tuple[set[int], set[int]]:
        """Start serving: return (fire, look) and empty both."""
        fire, look = self.fire, self.look
        self.fire, self.look, self.busy = set(), set(), True
        return fire, look

    def take_reminders(self) -> list[tuple[int, int]]:
        """Return the timers (shard, tick) that were set meanwhile."""
        reminders, self.reminders = self.reminders, {}
        return list(reminders.items())
