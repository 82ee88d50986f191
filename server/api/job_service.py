"""JobService: submitting, finding and steering jobs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from server.api.convert import span
from server.api.end_watch import EndWatch
from server.api.errors import Exhausted, WrongState, api_error, internal_error
from server.api.job_listing import JobLister
from server.api.job_reader import JobReader, job_not_found
from server.api.new_jobs import JobFactory, created_record
from server.api.ports import EngineHandle, Owners
from server.api.quota_keeper import QuotaKeeper
from server.api.submitter import Submitter
from server.api.validation import (
    Limits,
    Problems,
    check_batch,
    check_id,
    check_ids,
    check_job,
    check_namespace,
    check_note,
    check_span,
)
from server.domain.job import JobState, NewJob, Submitted
from server.domain.policies import SERVER_DEFAULTS, Policies
from server.domain.quota import NO_QUOTAS
from server.domain.sharding import shard_of_id
from server.store.catalog import Catalog, Namespace
from server.store.database import Database
from server.store.errors import Unavailable, UnknownOutcome
from server.store.jobs_control import RetryVerdict, cancel, retry
from server.store.jobs_read import JobView
from server.store.submit_function import pending_jobs
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Job, JobSpec
from shardwheel.v1.job_service_pb2_grpc import JobServiceServicer

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000
# A page ends before its message grows larger: clients by default accept 4 MiB.
MAX_PAGE_BYTES: Final = 2 * 1024 * 1024
MAX_WAIT_S: Final = 60.0
# A wait answers this long before the call's deadline, so that the answer arrives in time.
ANSWER_MARGIN_S: Final = 0.1
# How long WaitJob pauses before it asks a database again that is away.
WAIT_RETRY_S: Final = 0.5
MAX_WAITS: Final = 10_000

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Request, Awaitable[Response]]"
StreamContext: TypeAlias = (
    "grpc.aio.ServicerContext[AsyncIterator[pb.BulkSubmitJobsRequest], Awaitable[pb.BulkSubmitJobsResponse]]"
)


class JobService(JobServiceServicer):
    """Serves JobService on one node. `close` ends its background work."""

    def __init__(
        self,
        *,
        database: Database,
        partition_of: Sequence[int],
        catalog: Catalog,
        engine: EngineHandle,
        submitter: Submitter,
        owners: Owners | None = None,
        quotas: QuotaKeeper | None = None,
        limits: Limits | None = None,
        policies: Policies = SERVER_DEFAULTS,
    ) -> None:
        self._database = database
        self._partition_of = partition_of
        self._catalog = catalog
        self._engine = engine
        self._submitter = submitter
        self._quotas = quotas
        self._limits = limits or Limits()
        self._policies = policies
        self._reader = JobReader(database, partition_of, catalog, engine, owners)
        self._lister = JobLister(database, partition_of, catalog, self._reader)
        self._ends = EndWatch(database, watch=engine.watch)

    def watched(self, job_ids: Sequence[int]) -> None:
        """Take in that other nodes tell of the end of these jobs from now on."""
        self._ends.look_soon(job_ids)

    async def close(self) -> None:
        """End background work."""
        await self._ends.close()

    async def SubmitJob(
        self, request: pb.SubmitJobRequest, context: "Context[pb.SubmitJobRequest, pb.SubmitJobResponse]"
    ) -> pb.SubmitJobResponse:
        """Store one job, and answer after its commit."""
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        if request.HasField("job"):
            check_job(problems, "job", request.job, self._limits)
        else:
            problems.add("job", "", "is required")
        problems.check()
        namespace = await self._catalog.namespace(name)
        await self._admit(namespace, [request.job])
        [job] = await self._made(namespace, [request.job])
        submitted = await self._submitter.submit(name, job)
        message = await self._submitted_job(namespace, request.job, job, submitted)
        return pb.SubmitJobResponse(job=message, created=submitted.created, differs=submitted.differs)

    async def SubmitJobs(
        self, request: pb.SubmitJobsRequest, context: "Context[pb.SubmitJobsRequest, pb.SubmitJobsResponse]"
    ) -> pb.SubmitJobsResponse:
        """Store a batch of jobs, all or none."""
        results = await self._submit_batch(request)
        return pb.SubmitJobsResponse(
            results=[pb.SubmitResult(job_id=one.job_id, created=one.created, differs=one.differs) for one in results]
        )

    async def BulkSubmitJobs(
        self, request_iterator: AsyncIterator[pb.BulkSubmitJobsRequest], context: StreamContext
    ) -> pb.BulkSubmitJobsResponse:
        """Store any number of jobs, batch by batch; the next batch is read after the commit of the one before."""
        total = pb.BulkSubmitJobsResponse()
        try:
            async for request in request_iterator:
                results = await self._submit_batch(request)
                created = sum(one.created for one in results)
                total.created_count += created
                total.existing_count += len(results) - created
                total.differing_count += sum(one.differs for one in results)
                total.stored_batches += 1
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            known = api_error(error) or internal_error(error, "BulkSubmitJobs")
            known.metadata["stored_batches"] = str(total.stored_batches)
            raise known from error
        return total

    async def GetJob(self, request: pb.GetJobRequest, context: "Context[pb.GetJobRequest, Job]") -> Job:
        """Return a job with its attempts, and why it waits."""
        namespace = await self._namespace_of(request.namespace, request.id)
        return await self._reader.detailed(namespace, await self._reader.view(namespace, request.id))

    async def ListJobs(
        self, request: pb.ListJobsRequest, context: "Context[pb.ListJobsRequest, pb.ListJobsResponse]"
    ) -> pb.ListJobsResponse:
        """List jobs, the newest first."""
        return await self._lister.answer(request)

    async def CancelJob(self, request: pb.CancelJobRequest, context: "Context[pb.CancelJobRequest, Job]") -> Job:
        """Cancel a job: a pending one at once, a running one by telling its worker."""
        problems = Problems()
        check_note(problems, "reason", request.reason)
        namespace = await self._namespace_of(request.namespace, request.id, problems)
        partition = self._reader.partition(namespace, request.id)
        done = await cancel(self._database, partition, namespace.namespace_id, request.id, request.reason)
        if done is None:
            raise job_not_found(namespace, request.id)
        if isinstance(done, JobState):
            message = f"job {request.id} is {done.name.lower()} already, there is nothing to cancel"
            raise _wrong_state("JOB_FINAL", message, request.id, done)
        if done.running is not None:
            self._engine.cancel_requested(*done.running)
        else:
            self._engine.job_finished(request.id)
            if done.published is not None:
                self._engine.published_job_ended(done.published)
            if done.room is not None:
                self._engine.key_freed(shard_of_id(request.id), namespace.namespace_id, done.room)
        return await self._reader.detailed(namespace, await self._reader.view(namespace, request.id))

    async def RetryJob(self, request: pb.RetryJobRequest, context: "Context[pb.RetryJobRequest, Job]") -> Job:
        """Have a failed, cancelled or backing-off job tried now."""
        namespace = await self._namespace_of(request.namespace, request.id)
        partition = self._reader.partition(namespace, request.id)
        done = await retry(self._database, partition, namespace.namespace_id, request.id)
        if done is None:
            raise job_not_found(namespace, request.id)
        match done.verdict:
            case RetryVerdict.RUNNING:
                message = f"job {request.id} is running; cancel it first"
                raise _wrong_state("JOB_RUNNING", message, request.id, JobState.RUNNING)
            case RetryVerdict.COMPLETED:
                message = f"job {request.id} has completed; submit a new job instead"
                raise _wrong_state("JOB_COMPLETED", message, request.id, JobState.COMPLETED)
            case RetryVerdict.NOT_TRIED:
                message = f"job {request.id} has not been tried yet, it waits for its due time"
                raise _wrong_state("JOB_NOT_TRIED", message, request.id, JobState.PENDING)
            case RetryVerdict.DUE:
                if done.due is not None:
                    self._engine.jobs_added([done.due])
        return await self._reader.detailed(namespace, await self._reader.view(namespace, request.id))

    async def WaitJob(
        self, request: pb.WaitJobRequest, context: "Context[pb.WaitJobRequest, pb.WaitJobResponse]"
    ) -> pb.WaitJobResponse:
        """Answer when the job is final, or just before the time is over."""
        problems = Problems()
        if request.HasField("max_wait"):
            check_span(problems, "max_wait", request.max_wait)
        namespace = await self._namespace_of(request.namespace, request.id, problems)
        if len(self._ends) >= MAX_WAITS:
            advice = f"{MAX_WAITS} calls wait for jobs on this node already; ask GetJob from time to time instead"
            raise Exhausted("TOO_MANY_WAITS", advice)
        wait_s = MAX_WAIT_S
        if request.HasField("max_wait"):
            wait_s = min(wait_s, span(request.max_wait).total_seconds())
        remaining = context.time_remaining()
        if remaining is not None:
            wait_s = min(wait_s, remaining - ANSWER_MARGIN_S)
        until = asyncio.get_running_loop().time() + wait_s
        view = await self._wait(namespace, request.id, until)
        message = await self._reader.message(namespace, view.job)
        return pb.WaitJobResponse(job=message, done=view.job.state.final)

    async def NudgeJobs(
        self, request: pb.NudgeJobsRequest, context: "Context[pb.NudgeJobsRequest, pb.NudgeJobsResponse]"
    ) -> pb.NudgeJobsResponse:
        """Have jobs looked at now that were stored by SQL."""
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        check_ids(problems, "ids", request.ids)
        problems.check()
        namespace = await self._catalog.namespace(name)
        jobs = await pending_jobs(self._database, namespace.namespace_id, list(set(request.ids)))
        self._engine.jobs_added(jobs)
        return pb.NudgeJobsResponse(pending_count=len(jobs))

    async def _wait(self, namespace: Namespace, job_id: int, until: float) -> JobView:
        """Return the job as soon as it is final, or as it is at `until`. A database that is away is waited for."""
        loop = asyncio.get_running_loop()
        while True:
            # Made before the job is read: its end comes either before the read or to the waiter.
            waiter = self._engine.waiter(job_id)
            try:
                with self._ends.watching(job_id) as ended:
                    view = await self._reader.view(namespace, job_id)
                    left = until - loop.time()
                    if view.job.state.final or left <= 0:
                        return view
                    self._engine.watch(job_id)
                    await _first_of(waiter.wait(left), asyncio.wait_for(ended.wait(), left))
            except (Unavailable, UnknownOutcome):
                if loop.time() + WAIT_RETRY_S >= until:
                    raise
                await asyncio.sleep(WAIT_RETRY_S)
            finally:
                waiter.close()

    async def _admit(self, namespace: Namespace, specs: Sequence[JobSpec]) -> None:
        if self._quotas is not None and namespace.quotas is not NO_QUOTAS:
            await self._quotas.admit_jobs(namespace, len(specs), sum(len(spec.payload) for spec in specs))

    async def _made(self, namespace: Namespace, specs: Sequence[JobSpec]) -> list[NewJob]:
        names = list({spec.handler: None for spec in specs})
        handlers = await self._catalog.handlers_named(namespace.namespace_id, names)
        factory = JobFactory(namespace, handlers, self._policies)
        return [factory.make(spec) for spec in specs]

    async def _submit_batch(self, request: pb.SubmitJobsRequest | pb.BulkSubmitJobsRequest) -> list[Submitted]:
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        check_batch(problems, request.jobs, request.ByteSize(), self._limits)
        problems.check()
        namespace = await self._catalog.namespace(name)
        await self._admit(namespace, request.jobs)
        return await self._submitter.submit_batch(name, await self._made(namespace, request.jobs))

    async def _submitted_job(self, namespace: Namespace, spec: JobSpec, job: NewJob, submitted: Submitted) -> Job:
        if submitted.created and submitted.due_at is not None:
            return await self._reader.message(namespace, created_record(job, submitted))
        view = await self._reader.find(namespace, submitted.job_id)
        if view is None:
            # The key has outlived the job's place in the history.
            return Job(id=submitted.job_id, namespace=namespace.name, handler=spec.handler)
        return await self._reader.message(namespace, view.job)

    async def _namespace_of(self, name: str, job_id: int, problems: Problems | None = None) -> Namespace:
        problems = problems or Problems()
        name = check_namespace(problems, name)
        check_id(problems, job_id)
        problems.check()
        return await self._catalog.namespace(name)


def _wrong_state(reason: str, message: str, job_id: int, state: JobState) -> WrongState:
    return WrongState(reason, message, {"job_id": str(job_id), "state": state.name})


async def _first_of(*waits: Awaitable[object]) -> None:
    """Wait until one of them ends, in whatever way; end the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
