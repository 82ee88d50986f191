"""The firer against a store in memory: when it wakes, what it repeats, what it leaves alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from server.domain.due import DueJob
from server.domain.due_schedule import DueSchedule, DueSchedules, Fired, FireOrder, FireTimes
from server.domain.firing import Firing, FiringPlan, ScheduleState
from server.domain.schedule import IntervalSpec, OverlapPolicy, ScheduleTiming
from server.engine.clock import DatabaseClock
from server.engine.fire_round import MAX_JOBS, MAX_PAYLOAD_BYTES, MAX_SCHEDULES, batches
from server.engine.firer import Firer
from server.engine.ownership import Ownership
from server.engine.ports import Epochs, OutcomeUnknown, StoreUnavailable
from tests.support.waiting import eventually

# Four shards in two partitions.
PARTITION_OF = [0, 0, 1, 1]


def due_schedule(
    number: int, shard: int, next_nominal: datetime, *, every_s: float = 3600, size: int = 2,
    end_at: datetime | None = None,
) -> DueSchedule:  # fmt: skip
    spec = IntervalSpec(every=timedelta(seconds=every_s), anchor=next_nominal)
    state = ScheduleState(
        schedule_id=number << 12 | shard,
        timing=ScheduleTiming(spec=spec, end_at=end_at),
        next_nominal=next_nominal,
        overlap=OverlapPolicy.ALLOW,
    )
    return DueSchedule(state=state, version=1, payload_bytes=size)


@dataclass
class MemoryStore:
    """Implements the firer's port with the compare-and-set of the real store. Its clock is the machine's."""

    schedules: dict[int, DueSchedule] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(4), 1))
    jobs: list[tuple[int, datetime]] = field(default_factory=list)
    poisoned: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)
    fail_reads: Exception | None = None
    after_commit: list[Exception] = field(default_factory=list)
    reads: int = 0
    batches: list[int] = field(default_factory=list)

    def add(self, schedule: DueSchedule) -> DueSchedule:
        self.schedules[schedule.schedule_id] = schedule
        return schedule

    def _of(self, shards: Sequence[int], without: Sequence[int]) -> list[tuple[datetime, DueSchedule]]:
        if self.fail_reads is not None:
            raise self.fail_reads
        found = [
            (each.state.next_nominal, each)
            for each in self.schedules.values()
            if each.shard in shards and each.state.next_nominal is not None and each.schedule_id not in without
        ]
        return sorted(found, key=lambda pair: pair[0])

    async def due_schedules(
        self, partition: int, shards: Sequence[int], *, limit: int, without: Sequence[int] = ()
    ) -> DueSchedules:
        await asyncio.sleep(0)
        self.reads += 1
        now = datetime.now(UTC)
        due = [each for at, each in self._of(shards, without) if at <= now][:limit]
        return DueSchedules(
            schedules=[each for each in due if each.schedule_id not in self.unreadable],
            unreadable={each.schedule_id: "no" for each in due if each.schedule_id in self.unreadable},
            now=now if due else None,
        )

    async def next_fire_times(self, partition: int, shards: Sequence[int], *, without: Sequence[int] = ()) -> FireTimes:
        await asyncio.sleep(0)
        found: dict[int, datetime] = {}
        for at, each in self._of(shards, without):
            found.setdefault(each.shard, at)
        return FireTimes(by_shard=found, now=datetime.now(UTC) if found else None)

    async def fire(self, partition: int, epochs: Epochs, orders: Sequence[FireOrder]) -> Fired:
        await asyncio.sleep(0)
        if any(order.due.schedule_id in self.poisoned for order in orders):
            raise RuntimeError("a value that cannot be stored")
        live = frozenset(shard for shard, epoch in epochs if self.epochs[shard] == epoch)
        moved: set[int] = set()
        jobs: list[DueJob] = []
        for order in orders:
            stored = self.schedules.get(order.due.schedule_id)
            if stored != order.due or order.due.shard not in live or order.due.schedule_id in self.frozen:
                continue
            following = order.plan.next_fire_at
            self.schedules[stored.schedule_id] = replace(stored, state=replace(stored.state, next_nominal=following))
            moved.add(stored.schedule_id)
            for firing in order.plan.firings:
                self.jobs.append((stored.schedule_id, firing.nominal))
                number = (len(self.jobs) << 12) | stored.shard
                jobs.append(DueJob(3, firing.due_at, number, stored.shard, 1))
        self.batches.append(len(orders))
        if self.after_commit:
            raise self.after_commit.pop()
        return Fired(live_shards=live, schedule_ids=frozenset(moved), jobs=jobs)


@dataclass
class Setup:
    store: MemoryStore
    ownership: Ownership
    firer: Firer
    told: list[DueJob]


def setup(*, shards: Sequence[int] = range(4), sweep_s: float = 3600.0) -> Setup:
    ownership = Ownership(PARTITION_OF)
    for shard in shards:
        ownership.add(shard, 1)
    store = MemoryStore()
    told: list[DueJob] = []
    firer = Firer(store=store, ownership=ownership, clock=DatabaseClock(), on_jobs=told.extend, sweep_s=sweep_s)
    return Setup(store, ownership, firer, told)


@asynccontextmanager
async def running(parts: Setup) -> AsyncIterator[None]:
    for shard in parts.ownership.epochs:
        parts.firer.shard_started(shard)
    task = asyncio.create_task(parts.firer.run())
    try:
        yield
    finally:
        task.cancel()
        await parts.firer.stop()


def in_s(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_it_sleeps_until_the_next_time_and_is_not_early() -> None:
    parts = setup()
    at = [in_s(0.05), in_s(0.15), in_s(0.15)]
    for number, when in enumerate(at):
        parts.store.add(due_schedule(number, number % 4, when))
    async with running(parts):
        await eventually(lambda: len(parts.told) == 3, what="three firings")
        assert datetime.now(UTC) >= max(at)
    assert sorted(nominal for _, nominal in parts.store.jobs) == sorted(at)
    # One read when each shard is found due, hardly more: it does not poll.
    assert parts.store.reads <= 8


async def test_a_nudge_about_an_earlier_time_wakes_it() -> None:
    parts = setup()
    parts.store.add(due_schedule(1, 0, in_s(3600)))
    async with running(parts):
        await eventually(lambda: parts.firer._wheel.tick_of(0) is not None, what="the first look")
        parts.store.add(due_schedule(2, 0, soon := in_s(0.05)))
        parts.firer.schedules_changed(0, soon)
        await eventually(lambda: parts.told, what="the firing")
    assert parts.store.jobs == [(2 << 12, soon)]


async def test_a_nudge_that_comes_while_its_partition_is_served_is_kept() -> None:
    parts = setup(shards=[0])
    parts.store.add(due_schedule(1, 0, in_s(-1)))
    original = parts.store.next_fire_times
    soon = in_s(0.05)

    async def look(partition: int, shards: Sequence[int], *, without: Sequence[int] = ()) -> FireTimes:
        found = await original(partition, shards, without=without)
        if 2 << 12 not in parts.store.schedules:
            # Committed after the read, told of before its answer is taken in.
            parts.store.add(due_schedule(2, 0, soon))
            parts.firer.schedules_changed(0, soon)
        return found

    parts.store.next_fire_times = look  # type: ignore[method-assign]
    async with running(parts):
        await eventually(lambda: len(parts.told) == 2, timeout_s=5, what="both firings")


async def test_a_sweep_finds_what_no_nudge_told_of() -> None:
    parts = setup(sweep_s=0.2)
    async with running(parts):
        parts.store.add(due_schedule(1, 3, in_s(0)))
        await eventually(lambda: parts.told, timeout_s=5, what="the firing")


async def test_shards_that_are_not_owned_are_left_alone() -> None:
    parts = setup(shards=[0, 2], sweep_s=0.05)
    for shard in range(4):
        parts.store.add(due_schedule(shard, shard, in_s(-1)))
    async with running(parts):
        parts.firer.schedules_changed(1, in_s(0))
        await eventually(lambda: len(parts.told) == 2, what="two firings")
        parts.ownership.add(1, 1)
        parts.firer.shard_started(1)
        await eventually(lambda: len(parts.told) == 3, what="the shard that was added")
        parts.ownership.remove(0)
        parts.firer.shard_stopped(0)
        parts.store.add(due_schedule(9, 0, in_s(0)))
        parts.store.add(due_schedule(8, 2, in_s(0.1)))
        await eventually(lambda: len(parts.told) == 4, what="a firing of a shard that is still owned")
    assert [number for number, _ in parts.store.jobs if number & 0xFFF in (0, 3)] == [0]


async def test_a_fenced_shard_is_dropped_and_its_orders_have_no_effect() -> None:
    parts = setup()
    fenced: list[int] = []
    parts.ownership.on_fenced = fenced.append
    parts.store.epochs[0] = 2
    for shard in range(2):
        parts.store.add(due_schedule(shard, shard, in_s(-1)))
    await parts.firer.run_once()
    assert fenced == [0]
    assert [number & 0xFFF for number, _ in parts.store.jobs] == [1]


async def test_while_the_database_is_away_it_waits_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    parts = setup(sweep_s=0.05)
    at = in_s(-1)
    parts.store.add(due_schedule(1, 0, at))
    parts.store.add(due_schedule(2, 2, at))
    parts.store.fail_reads = StoreUnavailable("away")
    with caplog.at_level("INFO"):
        async with running(parts):
            await eventually(lambda: caplog.records, what="the warning")
            await eventually(lambda: parts.firer._parts[0].backoff.failures > 2, what="it tries again")
            parts.store.fail_reads = None
            await eventually(lambda: len(parts.told) == 2, timeout_s=10, what="it goes on")
    messages = [record.getMessage() for record in caplog.records if record.name == "server.engine.firer"]
    assert messages == ["firing waits for the database", "firing goes on"]


async def test_an_unknown_outcome_is_decided_on_again_and_fires_nothing_twice() -> None:
    parts = setup()
    committed = parts.store.add(due_schedule(1, 0, in_s(-1)))
    parts.store.after_commit = [OutcomeUnknown("the connection broke")]
    async with running(parts):
        await eventually(lambda: parts.store.batches, what="the commit")
        parts.store.add(due_schedule(2, 0, in_s(-1)))
        parts.firer.schedules_changed(0, in_s(0))
        await eventually(lambda: parts.told, what="the next firing")
    assert sorted(number for number, _ in parts.store.jobs) == [committed.schedule_id, 2 << 12]


async def test_one_that_cannot_be_stored_is_found_and_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    parts = setup(shards=[0])
    for number in range(100):
        parts.store.add(due_schedule(number, 0, in_s(-1)))
    parts.store.poisoned = {7 << 12, 93 << 12}
    parts.store.unreadable = {50 << 12}
    await parts.firer.run_once()
    assert len(parts.told) == 97
    told = sorted((record.msg, record.__dict__["schedule_id"] >> 12) for record in caplog.records)
    assert told == [("schedule cannot be fired", 7), ("schedule cannot be fired", 93), ("schedule cannot be read", 50)]
    # They are left out until somebody changes them.
    await parts.firer.run_once()
    assert len(caplog.records) == 3
    parts.store.poisoned.clear()
    parts.firer.schedules_changed(0, in_s(0))
    await parts.firer.run_once()
    assert len(parts.told) == 99


async def test_one_that_does_not_move_is_not_tried_in_a_tight_loop() -> None:
    parts = setup(shards=[0])
    stuck = parts.store.add(due_schedule(1, 0, in_s(-1)))
    parts.store.frozen = {stuck.schedule_id}
    async with running(parts):
        await eventually(lambda: parts.firer._parts[0].backoff.failures >= 3, what="three tries")
        assert len(parts.store.batches) <= 4
        parts.store.frozen.clear()
        await eventually(lambda: parts.told, what="the firing")


async def test_missed_firings_beyond_one_plan_are_caught_up_at_once() -> None:
    parts = setup(shards=[0])
    # No firing is added while this runs.
    first, end = in_s(-9), in_s(0.5)
    many = [due_schedule(n, 0, first, every_s=1, end_at=end) for n in range(1, 701)]
    for each in many:
        parts.store.add(each)
    await parts.firer.run_once()
    assert len(parts.told) == len(set(parts.store.jobs)) == 7000
    assert max(parts.store.batches) <= MAX_JOBS // 10


def order(firings: int, size: int) -> FireOrder:
    at = in_s(0)
    plan = FiringPlan(firings=(Firing(nominal=at, due_at=at),) * firings, next_fire_at=in_s(60))
    return FireOrder(due=due_schedule(1, 0, at, size=size), plan=plan)


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ([], []),
        ([order(1, 10)] * MAX_SCHEDULES, [MAX_SCHEDULES]),
        ([order(0, 10)] * (MAX_SCHEDULES + 1), [MAX_SCHEDULES, 1]),
        ([order(100, 10)] * 45, [20, 20, 5]),
        ([order(1, MAX_PAYLOAD_BYTES // 4)] * 9, [4, 4, 1]),
        ([order(1, 2 * MAX_PAYLOAD_BYTES), order(0, 2 * MAX_PAYLOAD_BYTES), order(1, 1)], [1, 2]),
    ],
)
def test_batches_are_bounded_by_schedules_jobs_and_bytes(orders: list[FireOrder], expected: list[int]) -> None:
    cut = list(batches(orders))
    assert [len(batch) for batch in cut] == expected
    assert [each for batch in cut for each in batch] == orders
