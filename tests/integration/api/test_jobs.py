"""JobService: what happens if all goes well, and the life of a job as clients see it."""

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from server.domain.handler import HandlerView
from server.domain.job import AttemptOutcome, JobState
from server.store.arrays import TextArray
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Attempt, Job, JobSpec, RetryPolicy, Timeouts
from tests.integration.api.node import ApiNode, Fleet, refused


async def submit(node: ApiNode, spec: JobSpec | None = None, namespace: str = "") -> Job:
    request = pb.SubmitJobRequest(namespace=namespace, job=spec or JobSpec(handler="email.send", payload=b"{}"))
    return (await node.jobs.SubmitJob(request)).job


async def handler_id(node: ApiNode, name: str = "email.send") -> int:
    handler = await node.catalog.find_handler(1, name)
    assert handler is not None
    return handler.handler_id


async def test_a_submitted_job_comes_back_with_everything_and_reads_the_same(node: ApiNode) -> None:
    due = Timestamp(seconds=4_102_444_800, nanos=123_456_001)
    spec = JobSpec(
        handler="email.send",
        payload=b"\x00\xff",
        content_type="application/json",
        name="welcome mail",
        priority=1,
        due_at=due,
        retry=RetryPolicy(max_attempts=7, non_retryable_error_types=["ValueError"]),
        timeouts=Timeouts(),
        concurrency_key="customer 7",
        concurrency_limit=3,
        labels={"team": "growth", "ß": "é"},
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    spec.retry.max_delay.FromTimedelta(timedelta(minutes=5))
    spec.timeouts.attempt_timeout.FromTimedelta(timedelta(seconds=30))
    spec.timeouts.total_timeout.FromTimedelta(timedelta(days=1))
    response = await node.jobs.SubmitJob(pb.SubmitJobRequest(job=spec))
    job = response.job
    assert (response.created, response.differs) == (True, False)
    assert (job.namespace, job.handler, job.name, job.state) == ("default", "email.send", "welcome mail", Job.PENDING)
    assert (job.payload, job.content_type, job.priority) == (b"\x00\xff", "application/json", 1)
    # Rounded up to what the database stores: a job never starts early.
    assert job.due_at == Timestamp(seconds=4_102_444_800, nanos=123_457_000)
    assert (job.retry.max_attempts, job.retry.multiplier, job.retry.initial_delay.seconds) == (7, 2.0, 1)
    assert (job.retry.max_delay.seconds, list(job.retry.non_retryable_error_types)) == (300, ["ValueError"])
    assert (job.timeouts.attempt_timeout.seconds, job.timeouts.HasField("start_timeout")) == (30, False)
    assert job.deadline_at == Timestamp(seconds=4_102_444_800 + 86_400, nanos=123_457_000)
    assert (job.concurrency_key, job.concurrency_limit, dict(job.labels)) == (
        "customer 7",
        3,
        {"team": "growth", "ß": "é"},
    )
    assert job.traceparent == spec.traceparent
    assert abs(job.created_at.ToDatetime(tzinfo=UTC) - datetime.now(UTC)) < timedelta(seconds=10)
    assert job.id & 4095 < 64

    read = await node.jobs.GetJob(pb.GetJobRequest(id=job.id))
    assert read.waiting_because == Job.NOT_DUE
    read.waiting_because = Job.WAITING_REASON_UNSPECIFIED
    assert read == job


async def test_the_engine_is_told_of_created_jobs(node: ApiNode) -> None:
    node.engine.owned = [5]
    job = await submit(node)
    [added] = node.engine.added
    assert (added.job_id, added.shard, added.priority) == (job.id, 5, 3)
    assert added.handler_id == await handler_id(node)
    assert added.due_at == job.due_at.ToDatetime(tzinfo=UTC)


async def test_policies_come_from_the_request_the_handler_the_namespace_the_server(node: ApiNode) -> None:
    from server.domain.policies import Policies

    namespace = admin_pb.CreateNamespaceRequest(namespace="shop", retry=RetryPolicy(max_attempts=2, multiplier=3))
    namespace.timeouts.start_timeout.seconds = 60
    await node.admin.CreateNamespace(namespace)
    shop = await node.catalog.namespace("shop")
    defaults = {"email.send": Policies(multiplier=5.0, attempt=timedelta(seconds=9))}
    await node.catalog.register_handlers(shop.namespace_id, defaults)
    spec = JobSpec(handler="email.send")
    spec.timeouts.attempt_timeout.seconds = 8
    job = await submit(node, spec, "shop")
    assert (job.retry.max_attempts, job.retry.multiplier, job.retry.max_delay.seconds) == (2, 5.0, 3600)
    assert (job.timeouts.attempt_timeout.seconds, job.timeouts.start_timeout.seconds) == (8, 60)


async def test_a_delay_counts_from_the_submit_by_the_database_clock(node: ApiNode) -> None:
    spec = JobSpec(handler="email.send")
    spec.delay.seconds = 90
    job = await submit(node, spec)
    assert job.due_at.ToDatetime() - job.created_at.ToDatetime() == timedelta(seconds=90)


async def test_a_batch_is_stored_whole_in_order(node: ApiNode) -> None:
    specs = [JobSpec(handler=f"h{number % 3}", name=str(number), dedupe_key=f"k{number % 5}") for number in range(10)]
    response = await node.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=specs))
    assert [one.created for one in response.results[:5]] == [True] * 5
    names = [(await node.jobs.GetJob(pb.GetJobRequest(id=one.job_id))).name for one in response.results]
    assert names[:5] == ["0", "1", "2", "3", "4"]
    # Keys belong to a handler: k0 of h0 and k0 of h2 are two jobs.
    assert len({one.job_id for one in response.results}) == len({(n % 3, n % 5) for n in range(10)})
    assert len(node.engine.added) == sum(one.created for one in response.results)


async def test_keyless_jobs_of_a_batch_share_a_shard_that_the_node_owns_and_batches_rotate(node: ApiNode) -> None:
    node.engine.owned = [9, 30]
    shards = []
    for _ in range(4):
        response = await node.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=[JobSpec(handler="h")] * 20))
        [shard] = {one.job_id & 4095 for one in response.results}
        shards.append(shard)
    assert sorted(set(shards)) == [9, 30]


async def test_jobs_of_a_concurrency_key_meet_in_one_shard_whatever_their_dedupe_key(node: ApiNode) -> None:
    ids = [
        (await submit(node, JobSpec(handler=f"h{number}", concurrency_key="k", dedupe_key=str(number)))).id
        for number in range(5)
    ]
    assert len({job_id & 4095 for job_id in ids}) == 1


async def test_a_bulk_submit_counts_what_became_of_the_jobs(node: ApiNode) -> None:
    same = JobSpec(handler="h", dedupe_key="k")
    other = JobSpec(handler="h", dedupe_key="k", name="other")
    batches = [[JobSpec(handler="h")] * 30, [same], [same, other]]
    requests = [pb.BulkSubmitJobsRequest(jobs=batch) for batch in batches]
    response = await node.jobs.BulkSubmitJobs(iter(requests))
    assert (response.created_count, response.existing_count, response.differing_count) == (31, 2, 1)
    assert response.stored_batches == 3


async def test_the_life_of_a_job_that_fails_once_and_then_completes(node: ApiNode, fleet: Fleet) -> None:
    job = await submit(node)
    [claimed] = await fleet.claim(await handler_id(node))
    running = await node.jobs.GetJob(pb.GetJobRequest(id=job.id))
    assert (running.state, running.worker, running.attempt, running.claim) == (Job.RUNNING, "worker-1", 1, 1)
    assert running.HasField("started_at")

    await fleet.requeue(
        claimed.ref,
        timedelta(hours=3),
        error_type="ValueError",
        message="no such mailbox",
        outcome=AttemptOutcome.FAILED,
    )
    waiting = await node.jobs.GetJob(pb.GetJobRequest(id=job.id))
    assert (waiting.state, waiting.waiting_because) == (Job.PENDING, Job.BACKING_OFF)
    assert (waiting.error.type, waiting.error.message, waiting.worker) == ("ValueError", "no such mailbox", "worker-1")
    [attempt] = waiting.attempts
    assert (attempt.attempt, attempt.claim, attempt.worker, attempt.outcome) == (1, 1, "worker-1", Attempt.FAILED)

    hurried = await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    assert (hurried.state, hurried.attempt) == (Job.PENDING, 1)
    assert hurried.due_at.ToDatetime(tzinfo=UTC) <= datetime.now(UTC)
    assert node.engine.added[-1].job_id == job.id

    [claimed] = await fleet.claim(await handler_id(node))
    await fleet.finish(claimed.ref, result=b"42", content_type="text/plain")
    final = await node.jobs.GetJob(pb.GetJobRequest(id=job.id))
    assert (final.state, final.result, final.result_content_type) == (Job.COMPLETED, b"42", "text/plain")
    assert (final.attempt, final.claim, final.waiting_because) == (2, 2, Job.WAITING_REASON_UNSPECIFIED)
    assert final.HasField("finished_at")
    assert final.payload == b"{}"
    assert len(final.attempts) == 1


async def test_get_job_says_why_a_job_waits(node: ApiNode) -> None:
    async def reason(job: Job) -> Job.WaitingReason.ValueType:
        return (await node.jobs.GetJob(pb.GetJobRequest(id=job.id))).waiting_because

    job = await submit(node)
    assert await reason(job) == Job.SHARD_WITHOUT_OWNER
    fleet = await Fleet.start(node.database)
    assert await reason(job) == Job.NO_WORKER
    handler = await handler_id(node)
    node.engine.views[handler] = HandlerView(workers=2, slots=8, free=0)
    assert await reason(job) == Job.NO_FREE_SLOT
    node.engine.views[handler] = HandlerView(workers=2, slots=8, free=1)
    assert await reason(job) == Job.WAITING_REASON_UNSPECIFIED
    await node.admin.PauseHandler(admin_pb.PauseHandlerRequest(handler="email.send", note="mail server is down"))
    assert await reason(job) == Job.HANDLER_PAUSED
    assert node.engine.pauses == [(handler, True)]
    assert await fleet.claim(handler) == []
    await node.admin.ResumeHandler(admin_pb.ResumeHandlerRequest(handler="email.send"))
    assert len(await fleet.claim(handler)) == 1

    keyed = [await submit(node, JobSpec(handler="email.send", concurrency_key="k")) for _ in range(2)]
    await fleet.claim(handler)
    assert [await reason(one) for one in keyed] == [Job.WAITING_REASON_UNSPECIFIED, Job.QUEUED_BEHIND_KEY]
    parked = await node.jobs.GetJob(pb.GetJobRequest(id=keyed[1].id))
    assert parked.state == Job.PENDING


async def test_a_pending_job_is_cancelled_at_once_and_can_be_tried_again(node: ApiNode, fleet: Fleet) -> None:
    spec = JobSpec(handler="email.send", labels={"a": "b"})
    spec.delay.seconds = 3600
    spec.timeouts.total_timeout.seconds = 60
    job = await submit(node, spec)
    cancelled = await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id, reason="wrong\naddress"))
    assert (cancelled.state, cancelled.error.type, cancelled.error.message) == (
        Job.CANCELLED,
        "cancelled",
        "wrong\naddress",
    )
    async with refused(grpc.StatusCode.FAILED_PRECONDITION) as refusals:
        await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id))
    assert (refusals[0].reason, refusals[0].metadata["state"]) == ("JOB_FINAL", "CANCELLED")

    again = await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    assert (again.id, again.state, again.attempt, dict(again.labels)) == (job.id, Job.PENDING, 0, {"a": "b"})
    assert again.deadline_at.ToDatetime() - again.due_at.ToDatetime() == timedelta(seconds=60)
    assert again.created_at == job.created_at
    assert not again.HasField("error")
    # The answer was lost and the call is repeated: nothing changes.
    repeated = await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    assert repeated.due_at == again.due_at
    [claimed] = await fleet.claim(await handler_id(node))
    assert (claimed.job_id, claimed.attempt) == (job.id, 1)


async def test_a_running_job_is_cancelled_through_its_worker_and_keeps_the_reason(node: ApiNode, fleet: Fleet) -> None:
    job = await submit(node)
    [claimed] = await fleet.claim(await handler_id(node))
    cancelled = await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id, reason="too expensive"))
    assert (cancelled.state, cancelled.cancel_requested) == (Job.RUNNING, True)
    assert node.engine.cancels == [(claimed.ref, fleet.worker_id)]
    rows = await node.database.run("SELECT timeout_at <= now() FROM jobs WHERE id = %s", (job.id,))
    assert rows == [(True,)]
    await fleet.finish(
        claimed.ref,
        JobState.CANCELLED,
        error_type="cancelled",
        message="cancelled by a user while it ran",
        outcome=AttemptOutcome.CANCELLED,
    )
    final = await node.jobs.GetJob(pb.GetJobRequest(id=job.id))
    assert (final.state, final.error.message) == (Job.CANCELLED, "too expensive")


async def test_a_retry_after_failure_keeps_the_claim_so_that_claims_never_repeat(node: ApiNode, fleet: Fleet) -> None:
    job = await submit(node)
    handler = await handler_id(node)
    [first] = await fleet.claim(handler)
    await fleet.finish(first.ref, JobState.FAILED, error_type="E", message="m", outcome=AttemptOutcome.FAILED)
    await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    [second] = await fleet.claim(handler)
    assert (second.claim, second.attempt) == (2, 1)
    # A result of the first life is not taken for one of the second.
    assert await fleet.finish(first.ref, result=b"late") == []
    await fleet.finish(second.ref, result=b"new")
    final = await node.jobs.GetJob(pb.GetJobRequest(id=job.id))
    assert (final.result, len(final.attempts)) == (b"new", 1)


async def test_states_that_do_not_allow_a_call(node: ApiNode, fleet: Fleet) -> None:
    spec = JobSpec(handler="email.send")
    spec.delay.seconds = 60
    future = await submit(node, spec)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION) as refusals:
        await node.jobs.RetryJob(pb.RetryJobRequest(id=future.id))
    assert refusals[0].reason == "JOB_NOT_TRIED"
    job = await submit(node)
    [claimed] = await fleet.claim(await handler_id(node))
    async with refused(grpc.StatusCode.FAILED_PRECONDITION) as refusals:
        await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    assert refusals[0].reason == "JOB_RUNNING"
    await fleet.finish(claimed.ref)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION) as refusals:
        await node.jobs.RetryJob(pb.RetryJobRequest(id=job.id))
    assert (refusals[0].reason, refusals[0].metadata["job_id"]) == ("JOB_COMPLETED", str(job.id))
    async with refused(grpc.StatusCode.FAILED_PRECONDITION) as refusals:
        await node.jobs.CancelJob(pb.CancelJobRequest(id=job.id))
    assert refusals[0].metadata["state"] == "COMPLETED"


async def test_unknown_ids_and_names_are_not_found(node: ApiNode) -> None:
    job = await submit(node)
    await node.admin.CreateNamespace(admin_pb.CreateNamespaceRequest(namespace="other"))
    # Of another namespace, never made, and of a shard that this cluster does not have.
    for namespace, job_id in (("other", job.id), ("", job.id + 4096), ("", job.id | 4095)):
        calls: list[Awaitable[object]] = [
            node.jobs.GetJob(pb.GetJobRequest(namespace=namespace, id=job_id)),
            node.jobs.CancelJob(pb.CancelJobRequest(namespace=namespace, id=job_id)),
            node.jobs.RetryJob(pb.RetryJobRequest(namespace=namespace, id=job_id)),
            node.jobs.WaitJob(pb.WaitJobRequest(namespace=namespace, id=job_id)),
        ]
        for call in calls:
            async with refused(grpc.StatusCode.NOT_FOUND) as refusals:
                await call
            assert (refusals[0].reason, refusals[0].metadata["job_id"]) == ("JOB_NOT_FOUND", str(job_id))
    async with refused(grpc.StatusCode.NOT_FOUND) as refusals:
        await submit(node, namespace="nowhere")
    assert refusals[0].reason == "NAMESPACE_NOT_FOUND"
    assert "shardctl namespaces create" in refusals[0].message


async def test_the_history_partition_of_the_day_is_made_when_it_is_missing(node: ApiNode, fleet: Fleet) -> None:
    async def drop_partitions() -> None:
        for (name,) in await node.database.run(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = ANY(%s::text[]::regclass[])",
            (TextArray(["job_history_completed", "job_history_unsuccessful", "attempts"]),),
        ):
            await node.database.run(b"DROP TABLE " + name.encode())

    cancelled, failing = await submit(node), await submit(node, JobSpec(handler="other"))
    await drop_partitions()
    assert (await node.jobs.CancelJob(pb.CancelJobRequest(id=cancelled.id))).state == Job.CANCELLED
    [claimed] = await fleet.claim(await handler_id(node, "other"))
    await drop_partitions()
    outcome = {"error_type": "E", "message": "m", "outcome": AttemptOutcome.FAILED}
    assert len(await fleet.requeue(claimed.ref, timedelta(0), **outcome)) == 1
    [claimed] = await fleet.claim(await handler_id(node, "other"))
    await drop_partitions()
    assert len(await fleet.finish(claimed.ref)) == 1
    assert (await node.jobs.GetJob(pb.GetJobRequest(id=failing.id))).state == Job.COMPLETED
