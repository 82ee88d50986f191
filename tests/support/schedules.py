"""A node's side of schedules on a real database: stores, owned shards, and values for tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from server.domain.cron import parse_cron
from server.domain.due import DueJob
from server.domain.job import NewJob
from server.domain.schedule import CronSpec, IntervalSpec, ScheduleTiming, TimingSpec
from server.domain.schedule_change import Creation, Unchanged, create
from server.domain.sharding import partition_of
from server.domain.stored_schedule import ScheduleDefinition, ScheduleDraft, StoredSchedule
from server.engine.clock import DatabaseClock
from server.engine.failpoints import Failpoints
from server.engine.firer import Firer
from server.engine.ownership import Ownership
from server.store.database import Database
from server.store.insert import IdBlock
from server.store.schedule_changes import ScheduleChanges
from server.store.schedule_firing import FiringStore
from server.store.schedules import ScheduleStore
from server.store.shards import fence_in

SHARDS = 64
PARTITIONS = 16
PARTITION_OF = [partition_of(shard, shards=SHARDS, partitions=PARTITIONS) for shard in range(SHARDS)]
NAMESPACE = "default"


@dataclass(kw_only=True)
class Bench:
    """The stores of one node, and the jobs that it was told of."""

    database: Database
    ids: IdBlock
    namespace_id: int
    handler_id: int
    told: list[DueJob] = field(default_factory=list)

    @property
    def schedules(self) -> ScheduleStore:
        return ScheduleStore(self.database, self.ids, PARTITION_OF)

    @property
    def changes(self) -> ScheduleChanges:
        return ScheduleChanges(self.database, self.ids, PARTITION_OF)

    @property
    def firing(self) -> FiringStore:
        return FiringStore(self.database, self.ids)

    def definition(self, spec: TimingSpec | None = None, **changes: object) -> ScheduleDefinition:
        """Return a definition; `timing` fields, policies and fields of the job may be given by name."""
        timing = {name: changes.pop(name) for name in ("start_at", "end_at", "jitter") if name in changes}
        policies = {name: changes.pop(name) for name in ("overlap", "catch_up", "catch_up_window") if name in changes}
        payload = changes.pop("payload", b"{}")
        job = {"namespace_id": self.namespace_id, "handler_id": self.handler_id, "payload": payload, **changes}
        return ScheduleDefinition(
            timing=ScheduleTiming(spec=spec or every(60), **timing),  # type: ignore[arg-type]
            job=NewJob(**job),  # type: ignore[arg-type]
            job_spec=b'{"handler":"h"}',
            **policies,  # type: ignore[arg-type]
        )

    async def create(self, names: Sequence[str], definition: ScheduleDefinition) -> list[StoredSchedule]:
        """Create schedules of one definition, and return them as they are stored."""

        def decide(now: datetime, existing: object) -> list[Creation | Unchanged]:
            return [create(ScheduleDraft(name=name, definition=definition), now) for name in names]

        changed = await self.changes.change(self.namespace_id, NAMESPACE, dict.fromkeys(names), decide)
        return await self.schedules.read([schedule_id for _, schedule_id in changed])

    async def get(self, name: str) -> StoredSchedule:
        """Return a schedule that exists."""
        found = await self.schedules.get(self.namespace_id, name)
        assert found is not None
        return found

    async def set_next(self, schedule: StoredSchedule, next_fire_at: datetime) -> None:
        """Move the next firing by SQL, into the past as a rule."""
        statement = "UPDATE schedules SET next_fire_at = %s WHERE id = %s AND shard = %s"
        await self.database.run(statement, (next_fire_at, schedule.schedule_id, schedule.schedule_id & 4095))

    async def jobs_of(self, schedule: StoredSchedule) -> list[tuple[datetime, datetime, int]]:
        """Return (scheduled_for, due_at, state) of the live jobs of a schedule, by scheduled_for."""
        statement = "SELECT scheduled_for, due_at, state FROM jobs WHERE schedule_id = %s ORDER BY scheduled_for"
        return [(row[0], row[1], row[2]) for row in await self.database.run(statement, (schedule.schedule_id,))]

    async def now(self) -> datetime:
        """Return the database clock."""
        now: datetime = (await self.database.run("SELECT now()"))[0][0]
        return now

    async def own(self, shards: Sequence[int], token: int = 1) -> dict[int, int]:
        """Fence in, and return the epochs."""
        return await fence_in(self.database, [(shard, 1, token) for shard in shards], f"node-{token}", token)

    async def ownership(self, shards: Sequence[int] = range(SHARDS), token: int = 1) -> Ownership:
        """Fence in, and return the ownership of a node."""
        ownership = Ownership(PARTITION_OF)
        for shard, epoch in (await self.own(shards, token)).items():
            ownership.add(shard, epoch)
        return ownership

    def firer(self, ownership: Ownership, *, failpoints: Failpoints | None = None, sweep_s: float = 3600.0) -> Firer:
        """Return a firer of this node; by default it does not sweep within a test."""
        return Firer(
            store=self.firing,
            ownership=ownership,
            clock=DatabaseClock(),
            on_jobs=self.told.extend,
            failpoints=failpoints,
            sweep_s=sweep_s,
        )


def every(seconds: float, anchor: datetime | None = None) -> IntervalSpec:
    """Return an interval that falls on whole multiples since 2020, or on `anchor`."""
    return IntervalSpec(every=timedelta(seconds=seconds), anchor=anchor or datetime(2020, 1, 1, tzinfo=UTC))


def cron(expression: str, zone: str = "UTC") -> CronSpec:
    """Return a cron timing."""
    return CronSpec(expression=parse_cron(expression), time_zone=zone)


@asynccontextmanager
async def open_bench(dsn: str) -> AsyncIterator[Bench]:
    """The stores of a node on a database, with one handler."""
    database = Database(dsn, hot_connections=4, api_connections=3)
    await database.open()
    try:
        [(namespace_id,)] = await database.run("SELECT id FROM namespaces WHERE name = 'default'")
        statement = "INSERT INTO handlers (namespace_id, name) VALUES (%s, 'h') RETURNING id"
        [(handler_id,)] = await database.run(statement, (namespace_id,))
        yield Bench(database=database, ids=IdBlock(database), namespace_id=namespace_id, handler_id=handler_id)
    finally:
        await database.close()
