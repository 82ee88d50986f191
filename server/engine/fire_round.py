"""One round of firing: everything that is due in some shards of a partition becomes jobs."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from server.domain.due import DueJob
from server.domain.due_schedule import DueSchedule, Fired, FireOrder
from server.domain.firing import MAX_BATCH, SkipReason, plan_firings
from server.engine.clock import DatabaseClock
from server.engine.failpoints import Failpoints
from server.engine.ownership import Ownership
from server.engine.ports import OutcomeUnknown, StoreUnavailable
from server.engine.ports_firer import FirerStore

log = logging.getLogger(__name__)

# What one read and one statement may hold.
MAX_SCHEDULES: Final = 500
MAX_JOBS: Final = 2000
MAX_PAYLOAD_BYTES: Final = 8 << 20
# How long a schedule that cannot be read or fired is left out, so that it does not hold up the others.
SET_ASIDE_S: Final = 300.0
MAX_SET_ASIDE: Final = 10_000
# A decision takes 50 µs, after an outage 350 µs; the event loop is given a turn between so many.
_PLANS_PER_TURN: Final = 20


class FireRound:
    """Reads what is due, decides, and applies the decisions in batches, each in the partition's lane.

    A schedule that cannot be read, decided on or fired is logged and set aside for `SET_ASIDE_S`; the others go on.
    `on_jobs` is told of the jobs of each commit.
    """

    def __init__(
        self,
        *,
        store: FirerStore,
        ownership: Ownership,
        clock: DatabaseClock,
        failpoints: Failpoints,
        on_jobs: Callable[[Sequence[DueJob]], None],
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._failpoints = failpoints
        self._on_jobs = on_jobs
        self._set_aside: dict[int, float] = {}
        self.batches = 0
        self.fired_jobs = 0
        self.skipped: dict[SkipReason, int] = {}
        """Firings that were skipped, by reason."""

    def owned(self, shards: Iterable[int]) -> list[int]:
        """Return those of the shards that this node owns, ascending."""
        return sorted(shard for shard in shards if shard in self._ownership.epochs)

    def set_aside(self) -> list[int]:
        """Return the ids of schedules that are left out now."""
        now = time.monotonic()
        while self._set_aside and self._set_aside[first := next(iter(self._set_aside))] <= now:
            del self._set_aside[first]
        return list(self._set_aside)

    def retry_set_aside(self, shard: int) -> None:
        """Take the schedules of a shard in again: one of them was changed."""
        for schedule_id in [number for number in self._set_aside if number & 0xFFF == shard]:
            del self._set_aside[schedule_id]

    async def fire_due(self, partition: int, shards: Iterable[int]) -> bool:
        """Fire what is due; return False if something is due that could not be moved on."""
        shards = list(shards)
        while owned := self.owned(shards):
            sent = time.monotonic()
            found = await self._store.due_schedules(partition, owned, limit=MAX_SCHEDULES, without=self.set_aside())
            if found.now is None:
                return True
            self._clock.observe(found.now, sent, time.monotonic())
            for schedule_id, reason in found.unreadable.items():
                log.error("schedule cannot be read", extra={"schedule_id": schedule_id, "error": reason})
                self._put_aside(schedule_id)
            orders = await self._decide(found.schedules, found.now)
            await self._failpoints.reach("fire.selected")
            moved = 0
            for batch in batches(orders):
                moved += await self._fire(partition, batch)
            if orders and not moved:
                return False
            if found.found < MAX_SCHEDULES and not any(_still_due(order, found.now) for order in orders):
                return True
        return True

    async def _decide(self, schedules: Sequence[DueSchedule], now: datetime) -> list[FireOrder]:
        orders: list[FireOrder] = []
        for number, due in enumerate(schedules, start=1):
            room = max(1, MAX_PAYLOAD_BYTES // max(1, due.payload_bytes))
            try:
                orders.append(FireOrder(due=due, plan=plan_firings(due.state, now, batch=min(MAX_BATCH, room))))
            except Exception:
                log.exception("schedule cannot be decided on", extra={"schedule_id": due.schedule_id})
                self._put_aside(due.schedule_id)
            if number % _PLANS_PER_TURN == 0:
                await asyncio.sleep(0)
        return orders

    async def _fire(self, partition: int, orders: Sequence[FireOrder]) -> int:
        """Apply orders and return how many schedules moved on; one that cannot be applied is found by halving."""
        try:
            fired = await self._apply(partition, orders)
        except (StoreUnavailable, OutcomeUnknown):
            raise
        except Exception:
            if len(orders) == 1:
                schedule_id = orders[0].due.schedule_id
                log.exception("schedule cannot be fired", extra={"schedule_id": schedule_id})
                self._put_aside(schedule_id)
                return 1
            half = len(orders) // 2
            return await self._fire(partition, orders[:half]) + await self._fire(partition, orders[half:])
        if fired is None:
            return 0
        self.batches += 1
        self.fired_jobs += len(fired.jobs)
        self._count_skipped(orders, fired)
        if fired.jobs:
            self._on_jobs(fired.jobs)
        return len(fired.schedule_ids)

    async def _apply(self, partition: int, orders: Sequence[FireOrder]) -> Fired | None:
        async with self._ownership.lane(partition):
            wanted = {order.due.shard for order in orders}
            epochs = [(shard, epoch) for shard, epoch in self._ownership.of_partition(partition) if shard in wanted]
            owned = {shard for shard, _ in epochs}
            orders = [order for order in orders if order.due.shard in owned]
            if not orders:
                return None
            fired = await self._store.fire(partition, epochs, orders)
        self._ownership.check(epochs, fired.live_shards)
        return fired

    def _count_skipped(self, orders: Sequence[FireOrder], fired: Fired) -> None:
        for order in orders:
            if order.due.schedule_id in fired.schedule_ids:
                for reason, count in order.plan.skipped.items():
                    self.skipped[reason] = self.skipped.get(reason, 0) + count

    def _put_aside(self, schedule_id: int) -> None:
        if len(self._set_aside) >= MAX_SET_ASIDE:
            del self._set_aside[next(iter(self._set_aside))]
        self._set_aside[schedule_id] = time.monotonic() + SET_ASIDE_S


def batches(orders: Sequence[FireOrder]) -> Iterator[list[FireOrder]]:
    """Cut orders into batches of bounded numbers of schedules and jobs and bounded payload; none is empty."""
    batch: list[FireOrder] = []
    jobs = size = 0
    for order in orders:
        count = len(order.plan.firings)
        payload = count * order.due.payload_bytes
        full = len(batch) >= MAX_SCHEDULES or jobs + count > MAX_JOBS or size + payload > MAX_PAYLOAD_BYTES
        if batch and full:
            yield batch
            batch, jobs, size = [], 0, 0
        batch.append(order)
        jobs += count
        size += payload
    if batch:
        yield batch


def _still_due(order: FireOrder, now: datetime) -> bool:
    return order.plan.next_fire_at is not None and order.plan.next_fire_at <= now
