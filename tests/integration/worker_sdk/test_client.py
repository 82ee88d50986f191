"""The clients, against a node that answers as told, over a real socket."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from shardwheel.v1 import job_pb2, job_service_pb2, schedule_pb2, schedule_service_pb2
from tests.support.scripted_api import ScriptedApi, failure
from tests.support.waiting import eventually
from worker_sdk import (
    Aborted,
    AlreadyExists,
    AsyncClient,
    BulkProgress,
    BulkSubmitError,
    CatchUp,
    Client,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    JobState,
    NewJob,
    NewSchedule,
    NotFound,
    Overlap,
    PayloadError,
    RetryPolicy,
    ScheduleChange,
    ServerError,
    Timeouts,
    Unavailable,
    Unimplemented,
    WaitingReason,
    Worker,
)

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    """A node that answers every submit with job 7."""
    async with ScriptedApi() as server:
        server.answers["SubmitJob"] = [job_service_pb2.SubmitJobResponse(job=job_pb2.Job(id=7), created=True)]
        yield server


@pytest.fixture
async def client(api: ScriptedApi) -> AsyncIterator[AsyncClient]:
    """A client of that node."""
    async with AsyncClient(api.address, namespace="tenant", token="secret") as opened:
        yield opened


@dataclass
class Order:
    number: int
    at: datetime


async def test_a_submit_carries_everything_and_a_deadline(api: ScriptedApi, client: AsyncClient) -> None:
    submitted = await client.submit(
        "orders.pack",
        Order(number=3, at=NOON),
        name="pack it",
        priority=1,
        due_at=NOON,
        retry=RetryPolicy(max_attempts=3, initial_delay=2.5, non_retryable_error_types=("KeyError",)),
        timeouts=Timeouts(start=60, attempt=timedelta(minutes=1), total=3600),
        dedupe_key="order-3",
        dedupe_ttl=600,
        concurrency_key="customer-1",
        concurrency_limit=2,
        labels={"tier": "gold"},
        traceparent="00-aa-bb-01",
    )
    assert (submitted.job_id, submitted.created, submitted.differs) == (7, True, False)
    (request,) = cast("list[job_service_pb2.SubmitJobRequest]", api.of("SubmitJob"))
    job = request.job
    assert request.namespace == "tenant"
    assert job.payload == b'{"number":3,"at":"2030-06-01T12:00:00+00:00"}'
    assert job.content_type == "application/json"
    assert (job.handler, job.name, job.priority, job.dedupe_key) == ("orders.pack", "pack it", 1, "order-3")
    assert job.due_at.ToDatetime(tzinfo=UTC) == NOON
    assert (job.retry.max_attempts, job.retry.initial_delay.ToMilliseconds()) == (3, 2500)
    assert list(job.retry.non_retryable_error_types) == ["KeyError"]
    assert job.timeouts.attempt_timeout.seconds == 60
    assert (job.dedupe_ttl.seconds, job.concurrency_key, job.concurrency_limit) == (600, "customer-1", 2)
    assert dict(job.labels) == {"tier": "gold"}
    assert job.traceparent == "00-aa-bb-01"
    assert api.metadata["authorization"] == "Bearer secret"
    # Longer deadlines travel rounded up to a tenth of a second.
    assert 8 < api.times_left[0] <= 10.2


async def test_a_submit_without_a_key_is_repeated_with_a_random_one(api: ScriptedApi, client: AsyncClient) -> None:
    away = failure(grpc.StatusCode.UNAVAILABLE, "database away", retry_s=0.05)
    api.answers["SubmitJob"] = [away, away, job_service_pb2.SubmitJobResponse(job=job_pb2.Job(id=8), created=True)]
    assert (await client.submit("a", delay=30)).job_id == 8
    requests = cast("list[job_service_pb2.SubmitJobRequest]", api.of("SubmitJob"))
    assert len(requests) == 3
    keys = {request.job.dedupe_key for request in requests}
    assert len(keys) == 1
    assert keys.pop().startswith("auto/")
    assert requests[0].job.delay.seconds == 30
    assert requests[0].job.payload == b""


async def test_a_call_that_a_stopping_node_breaks_off_is_repeated_if_that_is_safe(
    api: ScriptedApi, client: AsyncClient
) -> None:
    cut = failure(grpc.StatusCode.CANCELLED, "CANCELLED")
    api.answers["SubmitJob"] = [cut, job_service_pb2.SubmitJobResponse(job=job_pb2.Job(id=8), created=True)]
    assert (await client.submit("a", dedupe_key="k")).job_id == 8
    api.answers["CancelJob"] = [cut]
    with pytest.raises(Unavailable):
        await client.cancel(1)
    assert len(api.requests) == 3


async def test_what_is_not_safe_to_repeat_is_not_repeated(api: ScriptedApi) -> None:
    away = failure(grpc.StatusCode.UNAVAILABLE, "database away")
    api.answers.update({method: [away] for method in ("SubmitJob", "CancelJob", "TriggerSchedule")})
    async with AsyncClient(api.address, retry_submits=False) as client:
        with pytest.raises(Unavailable, match="database away"):
            await client.submit("a")
        with pytest.raises(Unavailable):
            await client.cancel(1)
        with pytest.raises(Unavailable):
            await client.trigger_schedule("nightly")
    assert len(api.requests) == 3


async def test_repetitions_end_with_the_deadline(api: ScriptedApi) -> None:
    api.answers["GetJob"] = [failure(grpc.StatusCode.UNAVAILABLE, "database away")]
    async with AsyncClient(api.address, timeout=0.5) as client:
        with pytest.raises(Unavailable, match="database away"):
            await client.get(1)
    assert len(api.requests) >= 2
    async with AsyncClient("127.0.0.1:9", timeout=0.3) as client:
        with pytest.raises(Unavailable):
            await client.get(1)


async def test_another_address_is_tried_when_one_does_not_answer(api: ScriptedApi) -> None:
    async with AsyncClient(f"127.0.0.1:9,{api.address}") as client:
        assert (await client.submit("a")).job_id == 7


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExists),
        (grpc.StatusCode.FAILED_PRECONDITION, FailedPrecondition),
        (grpc.StatusCode.ABORTED, Aborted),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.UNIMPLEMENTED, Unimplemented),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.DATA_LOSS, ServerError),
    ],
)
async def test_errors_have_types(
    api: ScriptedApi, client: AsyncClient, code: grpc.StatusCode, kind: type[Exception]
) -> None:
    api.answers["GetJob"] = [failure(code, "no luck", reason="NO_LUCK", metadata={"shard": "7"})]
    with pytest.raises(kind, match="no luck") as caught:
        await client.get(1)
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.reason, error.metadata) == (code.name, "NO_LUCK", {"shard": "7"})  # type: ignore[attr-defined]


async def test_refused_fields_are_named(api: ScriptedApi, client: AsyncClient) -> None:
    api.answers["SubmitJob"] = [
        failure(
            grpc.StatusCode.INVALID_ARGUMENT,
            "the job is refused",
            reason="INVALID_ARGUMENT",
            violations={"job.handler": "must not be empty; name a handler", "job.priority": "must be 1 to 5"},
        )
    ]
    with pytest.raises(InvalidArgument) as caught:
        await client.submit("")
    assert [item.field for item in caught.value.violations] == ["job.handler", "job.priority"]
    assert "job.priority: must be 1 to 5" in str(caught.value)


async def test_a_job_is_shown_in_full(api: ScriptedApi, client: AsyncClient) -> None:
    message = job_pb2.Job(
        id=5, namespace="tenant", handler="a", state=job_pb2.Job.FAILED, priority=3, attempt=2, claim=4,
        result=b'{"x":1}', result_content_type="application/json", waiting_because=job_pb2.Job.NO_WORKER,
        error=job_pb2.JobError(type="ValueError", message="bad"), schedule_id=9,
        attempts=[job_pb2.Attempt(attempt=1, claim=2, outcome=job_pb2.Attempt.TIMED_OUT)],
    )  # fmt: skip
    message.due_at.FromDatetime(NOON)
    message.retry.max_attempts = 4
    api.answers["GetJob"] = [message]
    job = await client.get(5)
    assert (job.state, job.due_at, job.started_at) == (JobState.FAILED, NOON, None)
    assert job.result_json() == {"x": 1}
    assert job.error is not None
    assert job.error.type == "ValueError"
    assert job.waiting_because is WaitingReason.NO_WORKER
    assert job.retry == RetryPolicy(max_attempts=4)
    assert job.attempts[0].outcome == "timed_out"
    assert job.payload_json() is None
    api.answers["GetJob"] = [job_pb2.Job(id=5, payload=b"x")]
    job = await client.get(5)
    with pytest.raises(PayloadError, match="unknown type"):
        job.payload_json()


async def test_lists_go_through_all_pages(api: ScriptedApi, client: AsyncClient) -> None:
    pages = [("a", 3), ("b", 0), ("", 2)]

    def page(request: Message) -> Message:
        assert isinstance(request, job_service_pb2.ListJobsRequest)
        position = 0 if not request.page_token else "ab".index(request.page_token) + 1
        token, count = pages[position]
        jobs = [job_pb2.Job(id=10 * position + i) for i in range(count)]
        return job_service_pb2.ListJobsResponse(jobs=jobs, next_page_token=token)

    api.answers["ListJobs"] = page
    found = [
        job.id
        async for job in client.list(
            handler="a", states=[JobState.PENDING], labels={"k": "v"}, created_from=NOON, page_size=3
        )
    ]
    assert found == [0, 1, 2, 20, 21]
    request = cast("job_service_pb2.ListJobsRequest", api.of("ListJobs")[-1])
    assert (request.handler, list(request.states), dict(request.labels)) == ("a", [job_pb2.Job.PENDING], {"k": "v"})
    assert request.created_from.ToDatetime(tzinfo=UTC) == NOON


async def test_wait_asks_until_the_job_is_final(api: ScriptedApi, client: AsyncClient) -> None:
    done = job_pb2.Job(id=3, state=job_pb2.Job.COMPLETED, result=b"1", result_content_type="application/json")
    api.answers["WaitJob"] = [
        job_service_pb2.WaitJobResponse(job=job_pb2.Job(id=3, state=job_pb2.Job.RUNNING)),
        failure(grpc.StatusCode.UNAVAILABLE, "node stops"),
        job_service_pb2.WaitJobResponse(job=done, done=True),
    ]
    job = await client.wait(3, timeout=5)
    assert job.result_json() == 1
    assert len(api.requests) == 3
    api.answers["WaitJob"] = [job_service_pb2.WaitJobResponse(job=job_pb2.Job(id=3))]
    with pytest.raises(TimeoutError):
        await client.wait(3, timeout=0.1)


async def test_many_jobs_go_in_one_call(api: ScriptedApi, client: AsyncClient) -> None:
    results = [job_service_pb2.SubmitResult(job_id=1, created=True), job_service_pb2.SubmitResult(job_id=2)]
    api.answers["SubmitJobs"] = [job_service_pb2.SubmitJobsResponse(results=results)]
    submitted = await client.submit_many([NewJob(handler="a", payload=b"raw"), NewJob(handler="b", dedupe_key="k")])
    assert [(item.job_id, item.created) for item in submitted] == [(1, True), (2, False)]
    (request,) = cast("list[job_service_pb2.SubmitJobsRequest]", api.of("SubmitJobs"))
    assert request.jobs[0].payload == b"raw"
    assert request.jobs[0].content_type == "application/octet-stream"
    assert request.jobs[1].dedupe_key == "k"


def bulk_answer(api: ScriptedApi) -> None:
    """Have a bulk call answered with what it has brought since the last answer."""
    counted = 0

    def answer(request: Message) -> Message:
        nonlocal counted
        batches = cast("list[job_service_pb2.BulkSubmitJobsRequest]", api.of("BulkSubmitJobs"))
        total = sum(len(batch.jobs) for batch in batches)
        created, counted = total - counted, total
        return job_service_pb2.BulkSubmitJobsResponse(created_count=created, stored_batches=1)

    api.answers["BulkSubmitJobs"] = answer


def new_jobs(count: int) -> Iterator[NewJob]:
    return (NewJob(handler="a", payload=i) for i in range(count))


async def test_a_bulk_submit_keeps_to_the_limits_and_tells_its_progress(api: ScriptedApi, client: AsyncClient) -> None:
    bulk_answer(api)
    progress: list[int] = []
    stored = await client.bulk_submit(new_jobs(20_500), progress=lambda now: progress.append(now.stored))
    assert stored == BulkProgress(created=20_500)
    assert progress == [20_000, 20_500]
    batches = cast("list[job_service_pb2.BulkSubmitJobsRequest]", api.of("BulkSubmitJobs"))
    assert [len(batch.jobs) for batch in batches] == [1000] * 20 + [500]
    assert [job.payload for batch in batches for job in batch.jobs] == [str(i).encode() for i in range(20_500)]
    assert all(not job.dedupe_key for job in batches[0].jobs)
    api.requests.clear()
    bulk_answer(api)

    async def large() -> AsyncIterator[NewJob]:
        for _ in range(40):
            yield NewJob(handler="a", payload=b"x" * 200_000)

    assert (await client.bulk_submit(large())).stored == 40
    batches = cast("list[job_service_pb2.BulkSubmitJobsRequest]", api.of("BulkSubmitJobs"))
    assert max(batch.ByteSize() for batch in batches) < 4 << 20
    assert await client.bulk_submit([]) == BulkProgress()


async def test_a_bulk_submit_that_breaks_off_says_what_is_stored(api: ScriptedApi, client: AsyncClient) -> None:
    api.break_after = 3
    api.answers["BulkSubmitJobs"] = [
        failure(grpc.StatusCode.INVALID_ARGUMENT, "job 2000 is refused", reason="X", metadata={"stored_batches": "2"})
    ]
    with pytest.raises(BulkSubmitError, match="job 2000 is refused") as caught:
        await client.bulk_submit(new_jobs(6000))
    assert (caught.value.stored, caught.value.in_doubt) == (2000, 0)
    assert isinstance(caught.value.__cause__, InvalidArgument)
    api.answers["BulkSubmitJobs"] = [failure(grpc.StatusCode.UNAVAILABLE, "reset")]
    with pytest.raises(BulkSubmitError) as caught:
        await client.bulk_submit(new_jobs(2500))
    assert (caught.value.stored, caught.value.in_doubt) == (0, 2500)


async def test_a_source_that_raises_ends_a_bulk_submit_in_a_known_state(api: ScriptedApi, client: AsyncClient) -> None:
    bulk_answer(api)

    def source() -> Iterator[NewJob]:
        yield from new_jobs(1500)
        raise OSError("the file is cut short")

    with pytest.raises(BulkSubmitError, match="the file is cut short") as caught:
        await client.bulk_submit(source())
    assert (caught.value.stored, caught.value.in_doubt) == (1000, 0)


async def test_schedules(api: ScriptedApi, client: AsyncClient) -> None:
    new = NewSchedule(
        name="nightly", handler="report", payload={"full": True}, cron="0 3 * * *", time_zone="Europe/Paris",
        overlap=Overlap.BUFFER_ONE, catch_up=CatchUp.NONE, catch_up_window=60, jitter=5, priority=2,
        start_at=NOON, labels={"a": "b"}, retry=RetryPolicy(max_attempts=2),
    )  # fmt: skip

    def stored(request: Message) -> Message:
        assert isinstance(request, schedule_service_pb2.CreateScheduleRequest)
        message = schedule_pb2.Schedule(id=4, name=request.name, spec=request.spec, paused=request.paused, etag="e1")
        message.next_fire_at.FromDatetime(NOON)
        return message

    api.answers["CreateSchedule"] = stored
    schedule = await client.create_schedule(new, paused=True)
    assert (schedule.id, schedule.paused, schedule.next_fire_at, schedule.etag) == (4, True, NOON, "e1")
    spec = schedule.spec
    assert (spec.cron, spec.time_zone, spec.overlap, spec.catch_up) == (new.cron, new.time_zone, new.overlap, "none")
    assert spec.payload == b'{"full":true}'
    assert (spec.jitter, spec.start_at, spec.labels) == (timedelta(seconds=5), NOON, {"a": "b"})

    ensured = schedule_service_pb2.EnsureSchedulesResponse()
    ensured.results.add(name="nightly", change=schedule_service_pb2.EnsureSchedulesResponse.UNCHANGED)
    ensured.results.add(name="old", change=schedule_service_pb2.EnsureSchedulesResponse.DELETED)
    api.answers["EnsureSchedules"] = [ensured]
    changes = await client.ensure_schedules([new], prune_prefix="app-")
    assert [(item.name, item.change) for item in changes] == [
        ("nightly", ScheduleChange.UNCHANGED), ("old", ScheduleChange.DELETED)
    ]  # fmt: skip
    request = cast("schedule_service_pb2.EnsureSchedulesRequest", api.of("EnsureSchedules")[0])
    assert (request.prune_prefix, request.schedules[0].name) == ("app-", "nightly")

    for method in ("GetSchedule", "UpdateSchedule", "PauseSchedule", "ResumeSchedule"):
        api.answers[method] = [schedule_pb2.Schedule(name="s", spec=schedule_pb2.ScheduleSpec(once_at=due(NOON)))]
    assert (await client.get_schedule("s")).spec.once_at == NOON
    await client.update_schedule(new, fields=["cron", "job.payload"], etag="e1")
    update = cast("schedule_service_pb2.UpdateScheduleRequest", api.of("UpdateSchedule")[0])
    assert (list(update.update_mask.paths), update.etag) == (["cron", "job.payload"], "e1")
    await client.pause_schedule("s", note="holiday")
    await client.resume_schedule("s")
    api.answers["TriggerSchedule"] = [schedule_service_pb2.TriggerScheduleResponse(job=job_pb2.Job(id=77))]
    assert (await client.trigger_schedule("s")).id == 77
    api.answers["DeleteSchedule"] = [schedule_service_pb2.DeleteScheduleResponse()]
    await client.delete_schedule("s")
    every = schedule_pb2.Schedule(name="i", spec=schedule_pb2.ScheduleSpec())
    every.spec.interval.every.FromSeconds(90)
    api.answers["ListSchedules"] = [schedule_service_pb2.ListSchedulesResponse(schedules=[every])]
    assert [item.spec.every async for item in client.list_schedules(handler="h")] == [timedelta(seconds=90)]
    api.answers["PreviewSchedule"] = [
        schedule_service_pb2.PreviewScheduleResponse(firings=[due(NOON)], description="once", notes=["n"])
    ]
    preview = await client.preview_schedule(new, after=NOON, count=1)
    assert (preview.firings, preview.description, preview.notes) == ((NOON,), "once", ("n",))


def due(instant: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(instant)
    return message


async def test_the_client_without_asyncio_does_the_same(api: ScriptedApi) -> None:
    bulk_answer(api)
    api.answers["GetJob"] = [failure(grpc.StatusCode.NOT_FOUND, "no job 5")]
    api.answers["ListJobs"] = [job_service_pb2.ListJobsResponse(jobs=[job_pb2.Job(id=1), job_pb2.Job(id=2)])]

    def use() -> None:
        with Client(api.address) as client:
            assert client.submit("a", {"x": 1}).job_id == 7
            with pytest.raises(NotFound, match="no job 5"):
                client.get(5)
            assert [job.id for job in client.list()] == [1, 2]
            threads: set[int] = set()

            def source() -> Iterator[NewJob]:
                threads.add(threading.get_ident())
                yield from new_jobs(1500)

            progress: list[int] = []

            def tell(now: BulkProgress) -> None:
                threads.add(threading.get_ident())
                # The client may be used in here.
                assert client.submit("a").job_id == 7
                progress.append(now.stored)

            assert client.bulk_submit(source(), progress=tell).created == 1500
            assert progress == [1500]
            assert threads == {threading.get_ident()}
        with pytest.raises(RuntimeError, match="closed"):
            client.submit("a")

    await asyncio.to_thread(use)


async def test_handlers_submit_with_the_settings_of_their_worker(api: ScriptedApi) -> None:
    worker = Worker(api.address, namespace="tenant")

    @worker.handler("greet")
    async def greet(payload: dict[str, str]) -> None:
        return None

    assert (await asyncio.to_thread(greet.submit, {"to": "Ada"})).job_id == 7
    assert (await greet.submit_async({"to": "Bob"}, priority=1)).created
    first, second = cast("list[job_service_pb2.SubmitJobRequest]", api.of("SubmitJob"))
    assert (first.namespace, first.job.handler, first.job.payload) == ("tenant", "greet", b'{"to":"Ada"}')
    assert second.job.priority == 1
    await asyncio.to_thread(worker.client.close)


async def test_a_worker_stores_its_schedules_when_it_starts(api: ScriptedApi) -> None:
    worker = Worker(api.address, watchdog=0)

    @worker.schedule(cron="0 3 * * *", time_zone="Europe/Paris", payload={"full": True})
    @worker.schedule(every=60, name="report.frequent", overlap=Overlap.ALLOW)
    @worker.handler("report")
    async def report(payload: object) -> None:
        return None

    api.answers["EnsureSchedules"] = [
        failure(grpc.StatusCode.UNAVAILABLE, "starting"), schedule_service_pb2.EnsureSchedulesResponse()
    ]  # fmt: skip
    await asyncio.to_thread(worker.start)
    try:
        await eventually(lambda: len(api.of("EnsureSchedules")) == 2)
    finally:
        await asyncio.to_thread(worker.stop)
    request = cast("schedule_service_pb2.EnsureSchedulesRequest", api.of("EnsureSchedules")[1])
    assert [item.name for item in request.schedules] == ["report.frequent", "report"]
    assert request.schedules[1].spec.cron.time_zone == "Europe/Paris"
    assert not request.prune_prefix


async def test_a_worker_whose_schedule_is_refused_stops_with_the_reason(api: ScriptedApi) -> None:
    worker = Worker(api.address, watchdog=0)

    @worker.schedule(cron="61 * * * *")
    @worker.handler("report")
    async def report(payload: object) -> None:
        return None

    api.answers["EnsureSchedules"] = [failure(grpc.StatusCode.INVALID_ARGUMENT, "minute 61 does not exist")]
    with pytest.raises(InvalidArgument, match="minute 61"):
        await asyncio.to_thread(worker.run)
