"""The store's side of one node on a fresh database: a handler, some workers, every shard fenced in."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from server.domain.due import NO_BOUND, ClaimResult, Probe
from server.domain.job import AttemptRef, ClaimedJob, NewJob, Submitted
from server.domain.sharding import make_id, partition_of
from server.store import claim, insert, shards, workers
from server.store.database import Database
from server.store.insert import IdBlock, PlacedJob

SHARDS: Final = 64
PARTITIONS: Final = 16
PARTITION_OF: Final = [partition_of(shard, shards=SHARDS, partitions=PARTITIONS) for shard in range(SHARDS)]
NAMESPACE: Final = 1
NODE: Final = "node-1"
INCARNATION: Final = 11
EPOCH: Final = 1
LEASE: Final = timedelta(seconds=15)
NO_BOUNDS: Final = (NO_BOUND,) * 5


@dataclass(kw_only=True)
class Bench:
    """One node's store. Shard 0 and its partition 0 are meant where nothing else is said."""

    dsn: str
    database: Database
    ids: IdBlock
    handler: int
    worker: int
    second_worker: int

    async def handler_named(self, name: str, *, paused: bool = False) -> int:
        """Make a handler."""
        statement = "INSERT INTO handlers (namespace_id, name, paused) VALUES (%s, %s, %s) RETURNING id"
        [(handler_id,)] = await self.database.run(statement, (NAMESPACE, name, paused))
        return int(handler_id)

    async def worker_named(self, name: str, lease: timedelta = LEASE, incarnation: int = 1) -> int:
        """Register a worker."""
        admission = await workers.admit(self.database, NAMESPACE, name, incarnation, "sdk", b"{}", lease)
        assert admission.worker_id is not None
        return admission.worker_id

    def job(self, **changes: Any) -> NewJob:
        """Return a job; any field may be given."""
        return replace(NewJob(namespace_id=NAMESPACE, handler_id=self.handler, payload=b"p"), **changes)

    async def new_id(self, shard: int = 0) -> int:
        """Return an unused id."""
        return make_id(self.ids_of(await self.ids.take(1)), shard)

    @staticmethod
    def ids_of(block: range) -> int:
        """Return the first number of a block."""
        return block[0]

    async def insert(self, jobs: Sequence[NewJob], shard: int = 0) -> list[Submitted]:
        """Store jobs as one group."""
        numbers = await self.ids.take(len(jobs))
        placed = [PlacedJob(make_id(number, shard), job) for number, job in zip(numbers, jobs, strict=True)]
        return await insert.insert_jobs(self.database, PARTITION_OF, placed)

    async def submit(self, count: int = 1, shard: int = 0, **changes: Any) -> list[int]:
        """Store jobs that are all alike, and return their ids."""
        return [one.job_id for one in await self.insert([self.job(**changes)] * count, shard)]

    def probe(self, slots: int = 10, *, shard: int = 0, handler: int | None = None, **changes: Any) -> Probe:
        """Return a probe of a (shard, handler); `workers` or `bounds` may be given."""
        bound = {"workers": [self.worker] * slots, "bounds": NO_BOUNDS} | changes
        return Probe(shard, self.handler if handler is None else handler, bound["workers"], bound["bounds"])

    async def claim(self, *probes: Probe, epoch: int = EPOCH) -> ClaimResult:
        """Claim; without probes, up to ten jobs of shard 0."""
        asked = probes or (self.probe(),)
        epochs = [(shard, epoch) for shard in sorted({probe.shard for probe in asked})]
        return await claim.claim(self.database, PARTITION_OF[asked[0].shard], epochs, asked)

    async def claim_ids(self, *probes: Probe, epoch: int = EPOCH) -> list[int]:
        """Claim, and return the ids, ascending."""
        return sorted(job.job_id for job in (await self.claim(*probes, epoch=epoch)).jobs)

    async def start(self, **changes: Any) -> ClaimedJob:
        """Store a job and claim it; there is no other due job in the shard."""
        [job_id] = await self.submit(**changes)
        [job] = (await self.claim(self.probe(1))).jobs
        assert job.job_id == job_id
        return job

    async def start_many(self, count: int, shard: int = 0, **changes: Any) -> list[AttemptRef]:
        """Store jobs and claim them, and return their attempts."""
        await self.submit(count, shard, **changes)
        result = await self.claim(self.probe(count, shard=shard))
        assert len(result.jobs) == count
        return sorted(job.ref for job in result.jobs)

    async def row(self, job_id: int) -> Any:
        """Return the row of a live job as a named tuple, None if it has left."""
        rows = await self.database.fetch("SELECT * FROM jobs WHERE id = %s", (job_id,))
        return rows[0] if rows else None

    async def history(self, job_id: int) -> Any:
        """Return the row of a finished job, None if there is none; it is there once at most."""
        rows = await self.database.fetch("SELECT * FROM job_history WHERE id = %s", (job_id,))
        assert len(rows) <= 1
        return rows[0] if rows else None

    async def attempts(self, job_id: int) -> list[Any]:
        """Return the noted attempts of a job, the oldest first."""
        return await self.database.fetch("SELECT * FROM attempts WHERE job_id = %s ORDER BY ended_at, claim", (job_id,))

    async def now(self) -> datetime:
        """Return the database clock."""
        now: datetime = (await self.database.run("SELECT now()"))[0][0]
        return now

    async def sql(self, statement: str, *params: object) -> list[Any]:
        """Run any statement."""
        return await self.database.run(statement.encode(), params)

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """Return a connection of its own, in no transaction and not autocommitting; the caller closes it."""
        return await psycopg.AsyncConnection.connect(self.dsn)

    async def waiting_for_locks(self) -> int:
        """Return how many statements wait for a lock."""
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int((await self.database.run(statement))[0][0])


@asynccontextmanager
async def bench(dsn: str, *, hot_connections: int = 4, api_connections: int = 2) -> AsyncIterator[Bench]:
    """Open a node's store on a fresh database, with a handler, two workers, and all shards at epoch 1."""
    database = Database(dsn, hot_connections=hot_connections, api_connections=api_connections)
    await database.open()
    try:
        made = Bench(dsn=dsn, database=database, ids=IdBlock(database), handler=0, worker=0, second_worker=0)
        made.handler = await made.handler_named("h")
        made.worker = await made.worker_named("w1")
        made.second_worker = await made.worker_named("w2")
        epochs = await shards.fence_in(database, [(shard, 1, 1) for shard in range(SHARDS)], NODE, INCARNATION)
        assert set(epochs.values()) == {EPOCH}
        yield made
    finally:
        await database.close()
