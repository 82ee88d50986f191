"""The client for code without asyncio."""

import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar, Unpack

from worker_sdk.async_client import DEFAULT_TIMEOUT_S, AsyncClient
from worker_sdk.bulk import OnProgress
from worker_sdk.codec import Codec
from worker_sdk.durations import Span
from worker_sdk.errors import BulkSubmitError
from worker_sdk.jobs import BulkProgress, Job, JobState, NewJob, SubmitOptions, Submitted
from worker_sdk.loop_thread import LoopThread
from worker_sdk.schedules import EnsuredSchedule, NewSchedule, Schedule, SchedulePreview
from worker_sdk.sql_submit import SqlConnection, submit_in
from worker_sdk.tls import PathText, Tls

Result = TypeVar("Result")
Item = TypeVar("Item")


class Client:
    """Submits, finds and steers jobs and schedules; `with` closes it. Any number of threads may share one.

    The methods are those of `AsyncClient`, and say there what they do and raise; they block until the answer. The calls
    are made by an event loop in a thread of the client's own, which starts with the first call. A client cannot be
    taken through `fork`: create one in each process. Do not call it in an event loop, which it would block.
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
        """Prepare a client; it connects with the first call. The arguments are those of `AsyncClient`."""
        self._client = AsyncClient(
            address,
            namespace=namespace,
            timeout=timeout,
            codec=codec,
            ca=ca,
            tls=tls,
            token=token,
            token_file=token_file,
            retry_submits=retry_submits,
        )
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None and self._process == os.getpid():
            thread.call(self._client.close())
            thread.stop()

    def submit(self, handler: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Store a job and return once it is stored for good. The options are the fields of `NewJob`."""
        return self._call(self._client.submit(handler, payload, **options))

    def submit_in(
        self, connection: SqlConnection, handler: str, payload: object = None, **options: Unpack[SubmitOptions]
    ) -> Submitted:
        """Store a job in the transaction that is open on your own connection to Shardwheel's database.

        `connection` is a connection or cursor of psycopg, or a cursor of Django.
        """
        return submit_in(connection, *self._client.sql_spec(NewJob(handler=handler, payload=payload, **options)))

    def nudge(self, *job_ids: int) -> None:
        """Have jobs looked at now, after the commit of the transaction that they were stored in."""
        self._call(self._client.nudge(*job_ids))

    def start_submit(
        self, handler: str, payload: object = None, **options: Unpack[SubmitOptions]
    ) -> "Future[Submitted]":
        """Begin to store a job, without blocking; the future is done once it is stored for good."""
        return self._running_thread().spawn(self._client.submit(handler, payload, **options))

    def submit_many(self, jobs: Iterable[NewJob]) -> Sequence[Submitted]:
        """Store up to 1000 jobs, all of them or none, and return what became of each, in their order."""
        return self._call(self._client.submit_many(jobs))

    def bulk_submit(self, jobs: Iterable[NewJob], *, progress: OnProgress | None = None) -> BulkProgress:
        """Store any number of jobs, in batches, and return how many there are.

        `jobs` is read, and `progress` called, in the calling thread.
        """
        upload, batcher = self._client.bulk_upload(None)
        told = upload.progress
        try:
            for job in jobs:
                batch = batcher.add(self._client.bulk_spec(job))
                if batch is not None:
                    self._call(upload.send(batch))
                    if progress is not None and upload.progress != told:
                        told = upload.progress
                        progress(told)
            batch = batcher.rest()
            if batch is not None:
                self._call(upload.send(batch))
            stored = self._call(upload.finish())
            if progress is not None and stored != told:
                progress(stored)
            return stored
        except BulkSubmitError:
            raise
        except Exception as error:
            raise self._call(upload.abandoned(error)) from error
        finally:
            self._call(upload.close())

    def get(self, job_id: int) -> Job:
        """Return a job with its attempts, live or finished, and why it waits. Raises `NotFound`."""
        return self._call(self._client.get(job_id))

    def list(
        self,
        *,
        handler: str = "",
        states: Sequence[JobState] = (),
        labels: Mapping[str, str] | None = None,
        schedule_id: int | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 0,
    ) -> Iterator[Job]:
        """Yield the jobs that match all filters, the newest first, without payloads and results."""
        return self._iterate(
            self._client.list(
                handler=handler,
                states=states,
                labels=labels,
                schedule_id=schedule_id,
                created_from=created_from,
                created_before=created_before,
                page_size=page_size,
            )
        )

    def cancel(self, job_id: int, *, reason: str = "") -> Job:
        """Cancel a job: a pending one at once, a running one by telling its worker."""
        return self._call(self._client.cancel(job_id, reason=reason))

    def retry(self, job_id: int) -> Job:
        """Make a failed or cancelled job pending again, or a backing-off one due at once."""
        return self._call(self._client.retry(job_id))

    def wait(self, job_id: int, *, timeout: Span | None = None) -> Job:
        """Return the job when it is final. Raises `DeadlineExceeded` when `timeout` is over; None waits on."""
        return self._call(self._client.wait(job_id, timeout=timeout))

    def create_schedule(self, schedule: NewSchedule, *, paused: bool = False) -> Schedule:
        """Create a schedule; the same definition again returns the schedule as it is."""
        return self._call(self._client.create_schedule(schedule, paused=paused))

    def ensure_schedules(
        self, schedules: Iterable[NewSchedule], *, prune_prefix: str = "", dry_run: bool = False
    ) -> Sequence[EnsuredSchedule]:
        """Create, or update by name, up to 1000 schedules: all or none. Unchanged ones keep their next firing."""
        return self._call(self._client.ensure_schedules(schedules, prune_prefix=prune_prefix, dry_run=dry_run))

    def get_schedule(self, name: str) -> Schedule:
        """Return a schedule. Raises `NotFound`."""
        return self._call(self._client.get_schedule(name))

    def list_schedules(self, *, name_prefix: str = "", handler: str = "", page_size: int = 0) -> Iterator[Schedule]:
        """Yield the schedules that match all filters, by name."""
        return self._iterate(self._client.list_schedules(name_prefix=name_prefix, handler=handler, page_size=page_size))

    def update_schedule(self, schedule: NewSchedule, *, fields: Sequence[str] = (), etag: str = "") -> Schedule:
        """Change the definition of the schedule with that name; `fields` names what to change, none means all."""
        return self._call(self._client.update_schedule(schedule, fields=fields, etag=etag))

    def pause_schedule(self, name: str, *, note: str = "") -> Schedule:
        """Stop a schedule from firing. After the answer no new job is made until it is resumed."""
        return self._call(self._client.pause_schedule(name, note=note))

    def resume_schedule(self, name: str) -> Schedule:
        """Let a paused schedule fire again."""
        return self._call(self._client.resume_schedule(name))

    def trigger_schedule(self, name: str) -> Job:
        """Make a job of the schedule now, paused or not, outside the overlap policy, and return it."""
        return self._call(self._client.trigger_schedule(name))

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Jobs it made stay."""
        self._call(self._client.delete_schedule(name))

    def preview_schedule(
        self, schedule: NewSchedule, *, after: datetime | None = None, count: int = 0
    ) -> SchedulePreview:
        """Compute the next `count` (5 by default) firings of a definition after `after` (now by default)."""
        return self._call(self._client.preview_schedule(schedule, after=after, count=count))

    def _iterate(self, items: AsyncIterator[Item]) -> Iterator[Item]:
        async def following() -> tuple[Item, ...]:
            # StopAsyncIteration cannot pass through a future.
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        while True:
            item = self._call(following())
            if not item:
                return
            yield item[0]

    def _call(self, work: Coroutine[object, object, Result]) -> Result:
        try:
            thread = self._running_thread()
        except RuntimeError:
            work.close()
            raise
        return thread.call(work)

    def _running_thread(self) -> LoopThread:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed")
            if self._process != os.getpid():
                raise RuntimeError("a client cannot be used after a fork; create one in the new process")
            if self._thread is None:
                self._thread = LoopThread("shardwheel-client")
            return self._thread
