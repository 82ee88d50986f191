"""The engine's store: its ports, served by this package's statements."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import orjson

from server.domain.due import ClaimResult, DueJob, Probe
from server.domain.ending import Ended, FencedEnds, Recheck, RunningJob
from server.domain.job import AttemptRef
from server.domain.outcome import AttemptFacts, Finish, Requeue
from server.domain.worker_lease import Admission, Losses, Renewal
from server.engine.ports import Epochs, OutcomeUnknown, StoreUnavailable
from server.store import claim, finish, reap, shards, workers
from server.store.database import Database
from server.store.errors import Unavailable, UnknownOutcome
from server.store.partitions import with_time_partitions


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    try:
        yield
    except Unavailable as error:
        raise StoreUnavailable(str(error)) from error
    except UnknownOutcome as error:
        raise OutcomeUnknown(str(error)) from error


class PostgresEngineStore:
    """Implements `server.engine.ports.EngineStore` for one node."""

    def __init__(self, database: Database, *, node: str, incarnation: int) -> None:
        self._database = database
        self._node = node
        self._incarnation = incarnation

    async def sweep(self, partition: int) -> list[DueJob]:
        """See `DueStore`."""
        async with _translated():
            return await claim.sweep(self._database, partition)

    async def pending_partitions(self, partitions: Sequence[int]) -> list[int]:
        """See `DueStore`."""
        async with _translated():
            return await claim.pending_partitions(self._database, partitions)

    async def peek(
        self, partition: int, pairs: Sequence[tuple[int, int, Sequence[datetime]]], limit: int
    ) -> list[DueJob]:
        """See `DueStore`."""
        async with _translated():
            return await claim.peek(self._database, partition, pairs, limit)

    async def claim(self, partition: int, epochs: Epochs, probes: Sequence[Probe], *, look_past: int) -> ClaimResult:
        """See `DueStore`."""
        async with _translated():
            return await claim.claim(self._database, partition, epochs, probes, look_past=look_past)

    async def unpark(
        self, partition: int, epochs: Epochs, keys: Sequence[tuple[int, int, str, int]]
    ) -> tuple[list[DueJob], frozenset[int]]:
        """See `DueStore`."""
        async with _translated():
            return await reap.unpark(self._database, partition, epochs, keys)

    async def parked_with_room(
        self, partition: int, after: tuple[int, int, str] | None
    ) -> tuple[list[tuple[int, int, str, int]], tuple[int, int, str] | None]:
        """See `DueStore`."""
        async with _translated():
            return await reap.parked_with_room(self._database, partition, after)

    async def finish(self, partition: int, finishes: Sequence[Finish]) -> list[Ended]:
        """See `EndingStore`."""
        async with _translated():
            return await with_time_partitions(
                self._database, lambda: finish.finish(self._database, partition, finishes)
            )

    async def requeue(self, partition: int, requeues: Sequence[Requeue]) -> list[Ended]:
        """See `EndingStore`."""
        async with _translated():
            return await with_time_partitions(
                self._database, lambda: finish.requeue(self._database, partition, requeues)
            )

    async def fenced_finish(
        self,
        partition: int,
        epochs: Epochs,
        finishes: Sequence[Finish],
        recheck: Recheck,
        grace: timedelta,
        as_of: datetime,
    ) -> FencedEnds:
        """See `EndingStore`."""
        async with _translated():
            return await with_time_partitions(
                self._database,
                lambda: finish.fenced_finish(self._database, partition, epochs, finishes, recheck, grace, as_of),
            )

    async def fenced_requeue(
        self,
        partition: int,
        epochs: Epochs,
        requeues: Sequence[Requeue],
        recheck: Recheck,
        grace: timedelta,
        as_of: datetime,
    ) -> FencedEnds:
        """See `EndingStore`."""
        async with _translated():
            return await with_time_partitions(
                self._database,
                lambda: finish.fenced_requeue(self._database, partition, epochs, requeues, recheck, grace, as_of),
            )

    async def load_facts(
        self, partition: int, refs: Sequence[AttemptRef]
    ) -> tuple[datetime | None, dict[AttemptRef, AttemptFacts]]:
        """See `EndingStore`."""
        async with _translated():
            return await finish.load_facts(self._database, partition, refs)

    async def still_there(self, partition: int, job_ids: Sequence[int]) -> dict[int, int | None]:
        """See `EndingStore`."""
        async with _translated():
            return await finish.still_there(self._database, partition, job_ids)

    async def save_progress(self, partition: int, worker_id: int, progress: Sequence[tuple[AttemptRef, bytes]]) -> None:
        """See `EndingStore`."""
        async with _translated():
            await reap.save_progress(self._database, partition, worker_id, progress)

    async def load_running(self, partition: int, shard: int) -> list[RunningJob]:
        """See `RunningStore`."""
        async with _translated():
            return await reap.load_running(self._database, partition, shard)

    async def running_of_shards(self, partition: int, shards: Sequence[int]) -> dict[int, list[RunningJob]]:
        """See `RunningStore`."""
        async with _translated():
            return await reap.running_of_shards(self._database, partition, shards)

    async def running_of_workers(
        self, partition: int, shards: Sequence[int], workers: Sequence[int]
    ) -> list[RunningJob]:
        """See `RunningStore`."""
        async with _translated():
            return await reap.running_of_workers(self._database, partition, shards, workers)

    async def overdue(self, partition: int, shards: Sequence[int]) -> list[RunningJob]:
        """See `RunningStore`."""
        async with _translated():
            return await reap.overdue(self._database, partition, shards)

    async def expire(self, partition: int, epochs: Epochs) -> tuple[list[int], frozenset[int]]:
        """See `RunningStore`."""
        async with _translated():
            return await with_time_partitions(self._database, lambda: reap.expire(self._database, partition, epochs))

    async def attention(self, partition: int, shards: Sequence[int]) -> tuple[bool, bool, bool]:
        """See `RunningStore`."""
        async with _translated():
            return await reap.attention(self._database, partition, shards)

    async def clean_keys(self, partition: int, epochs: Epochs) -> frozenset[int]:
        """See `RunningStore`."""
        async with _translated():
            return await reap.clean_keys(self._database, partition, epochs)

    async def dead_workers(self, worker_ids: Sequence[int], *, as_of: datetime) -> list[int]:
        """See `RunningStore`."""
        async with _translated():
            return await workers.dead(self._database, worker_ids, as_of=as_of)

    async def admit_worker(
        self,
        namespace_id: int,
        name: str,
        incarnation: int,
        sdk: str,
        slots: Mapping[str, int],
        lease: timedelta,
        *,
        identity: str,
        heard: Sequence[int],
        alone: bool,
        settling: timedelta,
    ) -> Admission:
        """See `WorkerStore`."""
        async with _translated():
            return await workers.admit(
                self._database,
                namespace_id,
                name,
                incarnation,
                sdk,
                orjson.dumps(dict(slots)),
                lease,
                identity=identity,
                heard=heard,
                alone=alone,
                settling=settling,
            )

    async def renew_workers(self, heard: Mapping[int, timedelta], lease: timedelta, quiet: timedelta) -> Renewal:
        """See `WorkerStore`."""
        async with _translated():
            return await workers.renew(self._database, heard, lease, quiet)

    async def end_workers(self, worker_ids: Sequence[int], reason: str) -> None:
        """See `WorkerStore`."""
        async with _translated():
            await workers.end(self._database, worker_ids, reason)

    async def doubt_workers(self, worker_ids: Sequence[int]) -> None:
        """See `WorkerStore`."""
        async with _translated():
            await workers.doubt(self._database, worker_ids)

    async def lose_workers(self, worker_ids: Sequence[int], grace: timedelta) -> Losses:
        """See `WorkerStore`."""
        async with _translated():
            return await workers.lose(self._database, worker_ids, grace)

    async def fence_in(self, leases: Sequence[tuple[int, int, int]]) -> dict[int, int]:
        """See `ShardStore`."""
        async with _translated():
            return await shards.fence_in(self._database, leases, self._node, self._incarnation)

    async def bump(self, shard: int, epoch: int) -> int | None:
        """See `ShardStore`."""
        async with _translated():
            return await shards.bump(self._database, shard, epoch, self._incarnation)

    async def release_shards(self, epochs: Epochs) -> None:
        """See `ShardStore`."""
        async with _translated():
            await shards.release(self._database, epochs, self._incarnation)
