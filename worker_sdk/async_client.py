"""The client for asyncio."""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, Unpack

from shardwheel.v1 import job_pb2, job_service_pb2
from worker_sdk import tracing
from worker_sdk.backoff import Backoff
from worker_sdk.bulk import Batcher, BulkUpload, OnProgress
from worker_sdk.codec import Codec, JsonCodec
from worker_sdk.connection import Connection
from worker_sdk.durations import Span, as_seconds
from worker_sdk.errors import ApiError, BulkSubmitError, DeadlineExceeded, Unavailable
from worker_sdk.job_conversion import instant_to_proto, job_from_proto, job_spec, state_to_proto
from worker_sdk.jobs import BulkProgress, Job, JobState, NewJob, SubmitOptions, Submitted
from worker_sdk.schedule_calls import ScheduleCalls
from worker_sdk.sql_submit import AsyncpgConnection, SqlConnection, submit_in_async
from worker_sdk.tls import PathText, Tls
from worker_sdk.transport import Transport

DEFAULT_TIMEOUT_S = 10.0
# One WaitJob call asks for this long, well below the server's maximum of 60 s and common idle limits of proxies.
_WAIT_SLICE_S = 20.0
# A nudge saves a second at most.
_NUDGE_S = 1.0

_log = logging.getLogger("worker_sdk")


class AsyncClient(ScheduleCalls):
    """Submits, finds and steers jobs and schedules. Use it in one event loop only; `async with` closes it.

    Every call has a deadline: `timeout` (10 s by default), from the call to its answer, repetitions included. While no
    node is available, calls that do no more when sent twice are repeated with back-off inside the deadline. To that end
    a submit without a dedupe key gets a random one, unless `retry_submits` is off. Errors are described in
    `worker_sdk.errors`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        timeout: Span = DEFAULT_TIMEOUT_S,
        codec: Codec | None = None,
        ca: PathText | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        token_file: PathText | None = None,
        retry_submits: bool = True,
    ) -> None:
        """Prepare a client; it connects with the first call.

        `address` is `host:port`, or several with commas between; left out, `SHARDWHEEL_ADDRESS` or localhost:7400.
        `namespace`: left out, `SHARDWHEEL_NAMESPACE` or "default". `tls` switches TLS on; `ca`, short for
        `tls=Tls(ca=…)`, names a PEM file; left out, `SHARDWHEEL_CA`, `_CERT` and `_KEY`. `token` is sent as a bearer
        token; `token_file` holds it instead, and is read for each call; left out, `SHARDWHEEL_TOKEN` or `_TOKEN_FILE`.
        Raises `ConfigurationError` for malformed settings.
        """
        connection = Connection.resolve(
            address=address, namespace=namespace, ca=ca, tls=tls, token=token, token_file=token_file
        )
        codec = codec or JsonCodec()
        super().__init__(Transport(connection, timeout_s=as_seconds(timeout, "timeout")), codec)
        self._retry_submits = retry_submits

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def submit(self, handler: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Store a job and return once it is stored for good. The options are the fields of `NewJob`."""
        spec = job_spec(
            NewJob(handler=handler, payload=payload, **options), self._codec, retry_safe=self._retry_submits
        )
        request = job_service_pb2.SubmitJobRequest(namespace=self._namespace, job=spec)
        with tracing.submitting([request.job]):
            response = await self._transport.unary(
                lambda stubs: stubs.jobs.SubmitJob, request, repeatable=bool(spec.dedupe_key)
            )
        return Submitted(job_id=response.job.id, created=response.created, differs=response.differs)

    async def submit_in(
        self,
        connection: SqlConnection | AsyncpgConnection,
        handler: str,
        payload: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Submitted:
        """Store a job in the transaction that is open on your own connection to Shardwheel's database.

        The job is there if that transaction commits, with what else you write in it, and not if it does not. It is
        found within a second of the commit, at once with a `nudge`. No node is asked. `connection` is one of psycopg's
        asyncio or of asyncpg. Its role needs USAGE on the schema `shardwheel` and EXECUTE on its `submit_bytes`; what
        is refused is an error of the driver, with an SQLSTATE from SW003 on.
        """
        return await submit_in_async(connection, *self.sql_spec(NewJob(handler=handler, payload=payload, **options)))

    async def nudge(self, *job_ids: int) -> None:
        """Have jobs looked at now, after the commit of the transaction that they were stored in.

        Nothing is lost without it, nor if it fails: that is logged, not raised.
        """
        request = job_service_pb2.NudgeJobsRequest(namespace=self._namespace, ids=job_ids)
        try:
            await self._transport.unary(
                lambda stubs: stubs.jobs.NudgeJobs, request, repeatable=False, timeout_s=_NUDGE_S
            )
        except ApiError as error:
            _log.warning("jobs could not be nudged, they start within a second all the same: %s", error)

    async def submit_many(self, jobs: Iterable[NewJob]) -> list[Submitted]:
        """Store up to 1000 jobs, all of them or none, and return what became of each, in their order."""
        specs = [job_spec(job, self._codec, retry_safe=self._retry_submits) for job in jobs]
        request = job_service_pb2.SubmitJobsRequest(namespace=self._namespace, jobs=specs)
        with tracing.submitting(request.jobs):
            response = await self._transport.unary(
                lambda stubs: stubs.jobs.SubmitJobs, request, repeatable=all(spec.dedupe_key for spec in specs)
            )
        return [Submitted(job_id=item.job_id, created=item.created, differs=item.differs) for item in response.results]

    async def bulk_submit(
        self, jobs: Iterable[NewJob] | AsyncIterable[NewJob], *, progress: OnProgress | None = None
    ) -> BulkProgress:
        """Store any number of jobs, in batches of up to 1000, and return how many there are.

        Jobs keep the dedupe key they have and get no other. `progress` is called about every 20 batches with what is
        stored. Nothing is sent twice: when a call breaks off, `BulkSubmitError` says what is stored and what is in
        doubt. There is no deadline for the whole; each call of 20 batches has one of 10 minutes.
        """
        upload, batcher = self.bulk_upload(progress)
        try:
            async for job in _aiter(jobs):
                batch = batcher.add(self.bulk_spec(job))
                if batch is not None:
                    await upload.send(batch)
            batch = batcher.rest()
            if batch is not None:
                await upload.send(batch)
            return await upload.finish()
        except BulkSubmitError:
            raise
        except Exception as error:
            raise await upload.abandoned(error) from error
        finally:
            await upload.close()

    def sql_spec(self, job: NewJob) -> tuple[job_pb2.JobSpec, str]:
        """Return the wire form of a job for a submit by SQL, and its namespace. Raises `PayloadError`."""
        return job_spec(job, self._codec, retry_safe=False), self._namespace

    def bulk_upload(self, progress: OnProgress | None) -> tuple[BulkUpload, Batcher]:
        """Return the parts of a bulk submit, for a caller that drives it by itself."""
        return BulkUpload(self._transport, progress), Batcher(self._namespace)

    def bulk_spec(self, job: NewJob) -> job_pb2.JobSpec:
        """Return the wire form of a job for a bulk submit. Raises `PayloadError`."""
        spec = job_spec(job, self._codec, retry_safe=False)
        tracing.carry(spec)
        return spec

    async def get(self, job_id: int) -> Job:
        """Return a job with its attempts, live or finished, and why it waits. Raises `NotFound`."""
        request = job_service_pb2.GetJobRequest(namespace=self._namespace, id=job_id)
        return job_from_proto(await self._transport.unary(lambda stubs: stubs.jobs.GetJob, request, repeatable=True))

    async def list(
        self,
        *,
        handler: str = "",
        states: Sequence[JobState] = (),
        labels: Mapping[str, str] | None = None,
        schedule_id: int | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 0,
    ) -> AsyncIterator[Job]:
        """Yield the jobs that match all filters, the newest first, without payloads and results."""
        request = job_service_pb2.ListJobsRequest(
            namespace=self._namespace,
            handler=handler,
            states=[state_to_proto(state) for state in states],
            labels=labels or {},
            schedule_id=schedule_id or 0,
            page_size=page_size,
        )
        if created_from is not None:
            request.created_from.CopyFrom(instant_to_proto(created_from, "created_from"))
        if created_before is not None:
            request.created_before.CopyFrom(instant_to_proto(created_before, "created_before"))
        while True:
            page = await self._transport.unary(lambda stubs: stubs.jobs.ListJobs, request, repeatable=True)
            for message in page.jobs:
                yield job_from_proto(message)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def cancel(self, job_id: int, *, reason: str = "") -> Job:
        """Cancel a job: a pending one at once, a running one by telling its worker.

        Raises `FailedPrecondition` if the job is final already.
        """
        request = job_service_pb2.CancelJobRequest(namespace=self._namespace, id=job_id, reason=reason)
        return job_from_proto(
            await self._transport.unary(lambda stubs: stubs.jobs.CancelJob, request, repeatable=False)
        )

    async def retry(self, job_id: int) -> Job:
        """Make a failed or cancelled job pending again with its tries counted anew, or a backing-off one due at once.

        Raises `FailedPrecondition` if it runs or has completed.
        """
        request = job_service_pb2.RetryJobRequest(namespace=self._namespace, id=job_id)
        return job_from_proto(await self._transport.unary(lambda stubs: stubs.jobs.RetryJob, request, repeatable=False))

    async def wait(self, job_id: int, *, timeout: Span | None = None) -> Job:
        """Return the job when it is final, with its result or error.

        Without `timeout` this waits for as long as it takes, through outages of the nodes; with one, `DeadlineExceeded`
        is raised when it is over.
        """
        deadline = None if timeout is None else time.monotonic() + as_seconds(timeout, "timeout")
        backoff = Backoff()
        while True:
            left = _WAIT_SLICE_S if deadline is None else min(_WAIT_SLICE_S, deadline - time.monotonic())
            if left <= 0:
                raise DeadlineExceeded(f"job {job_id} was not final in time", code="DEADLINE_EXCEEDED")
            request = job_service_pb2.WaitJobRequest(namespace=self._namespace, id=job_id)
            request.max_wait.FromTimedelta(timedelta(seconds=left))
            try:
                response = await self._transport.unary(
                    lambda stubs: stubs.jobs.WaitJob,
                    request,
                    repeatable=True,
                    timeout_s=left + self._transport.timeout_s,
                )
            except (Unavailable, DeadlineExceeded):
                await asyncio.sleep(backoff.next_delay_s())
                continue
            if response.done:
                return job_from_proto(response.job)
            backoff.reset()


async def _aiter(jobs: Iterable[NewJob] | AsyncIterable[NewJob]) -> AsyncIterator[NewJob]:
    if isinstance(jobs, AsyncIterable):
        async for job in jobs:
            yield job
    else:
        for job in jobs:
            yield job
