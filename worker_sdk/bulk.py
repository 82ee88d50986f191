"""Uploads jobs in batches, and batches in segments.

A batch is one request message, stored whole. A segment is one call with several batches: its answer tells how many jobs
are stored, so progress is exact at the end of each segment, and at most one segment is in doubt when a call breaks off.
"""

import time
from collections.abc import Callable

import grpc

from shardwheel.v1 import job_pb2, job_service_pb2
from worker_sdk.call_status import true_failure
from worker_sdk.error_details import api_error
from worker_sdk.errors import BulkSubmitError
from worker_sdk.jobs import BulkProgress
from worker_sdk.transport import Transport

BATCH_JOBS = 1000
"""The server's limit of jobs per batch."""
BATCH_BYTES = 3 << 20
"""Below the server's limit of 4 MiB per batch; a single job always fits."""
SEGMENT_BATCHES = 20

_SEGMENT_TIMEOUT_S = 600.0
# A source of jobs that pauses this long would keep a call open for nothing; its batches are sent one per call.
_SLOW_SOURCE_S = 1.0

Batch = job_service_pb2.BulkSubmitJobsRequest
OnProgress = Callable[[BulkProgress], object]


class Batcher:
    """Collects jobs into batches that keep to the limits."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._batch = Batch(namespace=namespace)
        self._size = 0

    def add(self, spec: job_pb2.JobSpec) -> Batch | None:
        """Take a job; return the batch before it if that is full."""
        size = spec.ByteSize() + 8
        full = None
        if self._batch.jobs and (len(self._batch.jobs) >= BATCH_JOBS or self._size + size > BATCH_BYTES):
            full = self.rest()
        self._batch.jobs.append(spec)
        self._size += size
        return full

    def rest(self) -> Batch | None:
        """Return what is left, None if nothing is."""
        batch, self._batch, self._size = self._batch, Batch(namespace=self._namespace), 0
        return batch if batch.jobs else None


class BulkUpload:
    """One bulk submit. Raises `BulkSubmitError` when a call breaks off."""

    def __init__(self, transport: Transport, on_progress: OnProgress | None) -> None:
        self._transport = transport
        self._on_progress = on_progress
        self._call: grpc.aio.StreamUnaryCall[Batch, job_service_pb2.BulkSubmitJobsResponse] | None = None
        self._sizes: list[int] = []
        self._last_send = time.monotonic()
        self.progress = BulkProgress()
        """What is stored for certain."""

    async def send(self, batch: Batch) -> None:
        """Send a batch, and end the segment if it is long enough."""
        slow = time.monotonic() - self._last_send > _SLOW_SOURCE_S
        if self._call is None:
            self._call = self._transport.stubs().jobs.BulkSubmitJobs(
                timeout=_SEGMENT_TIMEOUT_S, metadata=self._transport.connection.metadata
            )
            self._sizes = []
        self._sizes.append(len(batch.jobs))
        try:
            await self._call.write(batch)
        except grpc.aio.AioRpcError as failure:
            error = await self._broken(failure)
            raise error from error.__cause__
        if slow or len(self._sizes) >= SEGMENT_BATCHES:
            await self.finish()
        self._last_send = time.monotonic()

    async def finish(self) -> BulkProgress:
        """End the segment that is open, if any, and return what is stored."""
        if self._call is not None:
            try:
                await self._call.done_writing()
                response = await self._call
            except grpc.aio.AioRpcError as failure:
                error = await self._broken(failure)
                raise error from error.__cause__
            self._call = None
            self.progress = BulkProgress(
                created=self.progress.created + response.created_count,
                existing=self.progress.existing + response.existing_count,
                differing=self.progress.differing + response.differing_count,
            )
            if self._on_progress is not None:
                self._on_progress(self.progress)
        return self.progress

    async def abandoned(self, cause: Exception) -> BulkSubmitError:
        """Store what was sent, and return the error for a source of jobs that raised `cause`."""
        await self.finish()
        return BulkSubmitError(stored=self.progress.stored, in_doubt=0, cause=cause)

    async def close(self) -> None:
        """Break off the call that is open, if any."""
        if self._call is not None:
            self._call.cancel()

    async def _broken(self, failure: grpc.aio.AioRpcError) -> BulkSubmitError:
        error = api_error(failure if self._call is None else await true_failure(self._call, failure))
        count = error.metadata.get("stored_batches", "")
        stored = sum(self._sizes[: int(count)]) if count.isdecimal() else 0
        # A node that counts the stored batches has stored no others, but for one whose outcome it does not know itself.
        unsure = self._sizes[int(count) : int(count) + 1] if error.reason == "OUTCOME_UNKNOWN" and count else []
        in_doubt = sum(unsure) if count.isdecimal() else sum(self._sizes)
        self._call = None
        return BulkSubmitError(stored=self.progress.stored + stored, in_doubt=in_doubt, cause=error)
