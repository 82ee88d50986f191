"""Jobs for an answer: read from the store, with names, attempts and the reason why they wait."""

from collections.abc import Sequence

from server.api.convert import attempt_message, job_message
from server.api.errors import NotFound
from server.api.ports import EngineHandle, Owners
from server.api.waiting_reason import waiting_reason, workers_reason
from server.domain.handler import HandlerView
from server.domain.sharding import shard_of_id
from server.store.catalog import Catalog, Namespace
from server.store.database import Database
from server.store.jobs_read import JobRecord, JobView, read_attempts, read_job
from shardwheel.v1.job_pb2 import Job


class JobReader:
    """Reads jobs and puts them into messages. `owners` are asked for what only they know, unless there are none."""

    def __init__(
        self,
        database: Database,
        partition_of: Sequence[int],
        catalog: Catalog,
        engine: EngineHandle,
        owners: Owners | None = None,
    ) -> None:
        self._database = database
        self._partition_of = partition_of
        self._catalog = catalog
        self._engine = engine
        self._owners = owners

    def partition(self, namespace: Namespace, job_id: int) -> int:
        """Return the partition of a job; raise `NotFound` for an id that no shard of this cluster can have made."""
        shard = shard_of_id(job_id)
        if shard >= len(self._partition_of):
            raise job_not_found(namespace, job_id)
        return self._partition_of[shard]

    async def find(self, namespace: Namespace, job_id: int) -> JobView | None:
        """Return a job, None if there is no such job."""
        partition = self.partition(namespace, job_id)
        return await read_job(self._database, partition, namespace.namespace_id, job_id)

    async def view(self, namespace: Namespace, job_id: int) -> JobView:
        """Return a job; raise `NotFound`."""
        view = await self.find(namespace, job_id)
        if view is None:
            raise job_not_found(namespace, job_id)
        return view

    async def message(self, namespace: Namespace, job: JobRecord) -> Job:
        """Return a job as a message."""
        handler = await self._catalog.handler_by_id(job.handler_id)
        return job_message(job, namespace.name, handler.name if handler else "")

    async def detailed(self, namespace: Namespace, view: JobView) -> Job:
        """Return a job as a message, with its attempts and the reason why it waits."""
        message = await self.message(namespace, view.job)
        if view.job.claim:
            attempts = await read_attempts(self._database, view.job.job_id)
            message.attempts.extend(map(attempt_message, attempts))
            if not message.worker and attempts:
                message.worker = attempts[-1].worker
        reason = waiting_reason(view)
        message.waiting_because = workers_reason(await self._workers(view)) if reason is None else reason
        return message

    async def _workers(self, view: JobView) -> HandlerView:
        """Return the workers that could be given a job: those of the owner of its shard, who hands it out."""
        shard, handler_id = shard_of_id(view.job.job_id), view.job.handler_id
        there = await self._owners.handler_view(shard, handler_id) if self._owners is not None else None
        return self._engine.handler_view(handler_id) if there is None else there


def job_not_found(namespace: Namespace, job_id: int) -> NotFound:
    """Return the error for a job that does not exist, or no longer."""
    return NotFound(
        "JOB_NOT_FOUND",
        f"namespace {namespace.name!r} has no job {job_id}; finished jobs are kept for a limited time only",
        {"namespace": namespace.name, "job_id": str(job_id)},
    )
