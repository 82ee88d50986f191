"""Claim time with no future jobs, and with two million of them (scenario `claim-future`)."""

import statistics
import time
from datetime import timedelta

from benchmarks.bench_database import fresh_database
from benchmarks.report import Report
from server.domain.due import NO_BOUND, Probe
from server.domain.job import NewJob
from server.domain.sharding import make_id
from server.store import claim, shards, workers
from server.store.database import Database
from server.store.insert import IdBlock, PlacedJob, insert_jobs

SHARDS, PARTITIONS = 64, 16
BATCH = 100
ROUNDS = 60

FILL = """
INSERT INTO jobs (id, shard, namespace_id, handler_id, due_at, priority, payload, max_attempts, retry_initial_ms,
    retry_multiplier, retry_max_ms)
SELECT ((1000000000 + n) << 12) | (n %% 64), (n %% 64)::int4, 1, %s, now() + interval '1 day' + n * interval '1 ms',
    1 + n %% 5, convert_to(repeat('x', 200), 'UTF8'), 4, 1000, 2, 3600000
FROM generate_series(%s::int8, %s::int8) AS n
"""


async def run(*, quick: bool) -> Report:
    """Measure."""
    future = 200_000 if quick else 2_000_000
    async with fresh_database() as (_, database):
        handler = (await database.run("INSERT INTO handlers (namespace_id, name) VALUES (1, 'bench') RETURNING id"))[0][
            0
        ]
        epochs = await shards.fence_in(database, [(shard, 1, 1) for shard in range(SHARDS)], "bench", 1)
        worker = (await workers.admit(database, 1, "bench", 1, "", b"{}", timedelta(hours=1))).worker_id
        assert worker is not None
        bench = _Bench(database, handler, worker, epochs)
        await bench.rounds(10)
        empty = await bench.rounds(ROUNDS)
        for start in range(0, future, 50_000):
            await database.run(FILL, (handler, start, start + 49_999), timeout=120)
        await database.run("VACUUM ANALYZE jobs", timeout=600)
        await bench.rounds(10)
        full = await bench.rounds(ROUNDS)
    return Report(
        scenario="claim-future",
        unit="ms per claim of 100 jobs, median",
        values={"no future jobs": empty, f"{future} future jobs": full, "ratio": full / empty},
        runs=ROUNDS,
    )


class _Bench:
    def __init__(self, database: Database, handler: int, worker: int, epochs: dict[int, int]) -> None:
        self._database = database
        self._handler = handler
        self._worker = worker
        self._epochs = epochs
        self._ids = IdBlock(database)
        self._partition_of = [shard // (SHARDS // PARTITIONS) for shard in range(SHARDS)]

    async def rounds(self, count: int) -> float:
        """Submit and claim `count` batches; return the median time of a claim in milliseconds."""
        times = []
        for number in range(count):
            shard = number % SHARDS
            job = NewJob(namespace_id=1, handler_id=self._handler, payload=b"x" * 200)
            placed = [PlacedJob(make_id(sequence, shard), job) for sequence in await self._ids.take(BATCH)]
            await insert_jobs(self._database, self._partition_of, placed)
            probe = Probe(shard, self._handler, [self._worker] * BATCH, [NO_BOUND] * 5)
            started = time.perf_counter()
            found = await claim.claim(
                self._database, self._partition_of[shard], [(shard, self._epochs[shard])], [probe]
            )
            times.append((time.perf_counter() - started) * 1000)
            assert len(found.jobs) == BATCH
            await self._database.run("DELETE FROM jobs WHERE state = 1 AND shard = %s", (shard,))
        return statistics.median(times)
