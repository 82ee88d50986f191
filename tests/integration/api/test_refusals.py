"""What bad input gets: INVALID_ARGUMENT with the field, the value and the remedy, and nothing is stored."""

import math
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from server.api.validation import Limits
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import Job, JobSpec, RetryPolicy, Timeouts
from tests.integration.api.node import ApiNode, Refusal, refused

KIB = 1024
INVALID = grpc.StatusCode.INVALID_ARGUMENT

# Each is a job that is fine but for one field: (field below `job`, words of the answer, job).
BAD_JOBS: list[tuple[str, str, JobSpec]] = [
    ("handler", "is required", JobSpec()),
    ("handler", "letters, digits", JobSpec(handler="email send")),
    ("handler", "letters, digits", JobSpec(handler="a\n")),
    ("handler", "letters, digits", JobSpec(handler="é")),
    ("handler", "1 to 200 characters", JobSpec(handler="h" * 201)),
    ("payload", "262145 bytes", JobSpec(handler="h", payload=bytes(256 * KIB + 1))),
    ("payload", "submit a reference", JobSpec(handler="h", payload=bytes(5 * KIB * KIB))),
    ("content_type", "media type", JobSpec(handler="h", content_type="text/plain\x00")),
    ("content_type", "media type", JobSpec(handler="h", content_type="t" * 201)),
    ("content_type", "media type", JobSpec(handler="h", content_type="téxt")),
    ("name", "at most 200 characters, this has 201", JobSpec(handler="h", name="n" * 201)),
    ("name", "character 2 is U+0000", JobSpec(handler="h", name="a\x00b")),
    ("name", "U+001B", JobSpec(handler="h", name="\x1b[31m")),
    ("priority", "from 1 (most urgent) to 5", JobSpec(handler="h", priority=6)),
    ("priority", "from 1 (most urgent) to 5", JobSpec(handler="h", priority=-1)),
    ("due_at", "2000 to 2199", JobSpec(handler="h", due_at=Timestamp(seconds=946_684_799))),
    ("due_at", "2000 to 2199", JobSpec(handler="h", due_at=Timestamp(seconds=7_258_118_400))),
    ("due_at", "2000 to 2199", JobSpec(handler="h", due_at=Timestamp(seconds=2**63 - 1))),
    ("due_at", "2000 to 2199", JobSpec(handler="h", due_at=Timestamp(seconds=-(2**63)))),
    ("due_at", "nanos from 0", JobSpec(handler="h", due_at=Timestamp(seconds=10**9, nanos=10**9))),
    ("due_at", "nanos from 0", JobSpec(handler="h", due_at=Timestamp(seconds=10**9, nanos=-1))),
    ("delay", "must not be negative", JobSpec(handler="h", delay=Duration(seconds=-1))),
    ("delay", "must not be negative", JobSpec(handler="h", delay=Duration(nanos=-1))),
    ("delay", "sign of the seconds", JobSpec(handler="h", delay=Duration(seconds=1, nanos=-1))),
    ("delay", "nanos below 1e9", JobSpec(handler="h", delay=Duration(nanos=10**9))),
    ("delay", "at most 3660 days", JobSpec(handler="h", delay=Duration(seconds=3660 * 86_400 + 1))),
    ("delay", "at most 3660 days", JobSpec(handler="h", delay=Duration(seconds=2**63 - 1))),
    ("retry.max_attempts", "from 1 to 1000", JobSpec(handler="h", retry=RetryPolicy(max_attempts=1001))),
    ("retry.max_attempts", "from 1 to 1000", JobSpec(handler="h", retry=RetryPolicy(max_attempts=-1))),
    ("retry.multiplier", "from 1 to 100", JobSpec(handler="h", retry=RetryPolicy(multiplier=0.5))),
    ("retry.multiplier", "from 1 to 100", JobSpec(handler="h", retry=RetryPolicy(multiplier=101))),
    ("retry.multiplier", "got 'nan'", JobSpec(handler="h", retry=RetryPolicy(multiplier=math.nan))),
    ("retry.multiplier", "got 'inf'", JobSpec(handler="h", retry=RetryPolicy(multiplier=math.inf))),
    (
        "retry.initial_delay",
        "at most max_delay",
        JobSpec(handler="h", retry=RetryPolicy(initial_delay=Duration(seconds=2), max_delay=Duration(seconds=1))),
    ),
    ("retry.max_delay", "at most 30 days", JobSpec(handler="h", retry=RetryPolicy(max_delay=Duration(seconds=10**8)))),
    (
        "retry.initial_delay",
        "must not be negative",
        JobSpec(handler="h", retry=RetryPolicy(initial_delay=Duration(seconds=-1))),
    ),
    (
        "retry.non_retryable_error_types",
        "at most 100",
        JobSpec(handler="h", retry=RetryPolicy(non_retryable_error_types=["E"] * 101)),
    ),
    (
        "retry.non_retryable_error_types[1]",
        "must not be empty",
        JobSpec(handler="h", retry=RetryPolicy(non_retryable_error_types=["E", ""])),
    ),
    (
        "retry.non_retryable_error_types[0]",
        "U+000A",
        JobSpec(handler="h", retry=RetryPolicy(non_retryable_error_types=["E\nF"])),
    ),
    ("timeouts.start_timeout", "above 0", JobSpec(handler="h", timeouts=Timeouts(start_timeout=Duration()))),
    (
        "timeouts.attempt_timeout",
        "above 0",
        JobSpec(handler="h", timeouts=Timeouts(attempt_timeout=Duration(nanos=-1))),
    ),
    (
        "timeouts.total_timeout",
        "at most 3660 days",
        JobSpec(handler="h", timeouts=Timeouts(total_timeout=Duration(seconds=10**9))),
    ),
    ("dedupe_key", "at most 200 characters", JobSpec(handler="h", dedupe_key="k" * 201)),
    ("dedupe_key", "U+0000", JobSpec(handler="h", dedupe_key="\x00")),
    ("dedupe_ttl", "needs a dedupe_key", JobSpec(handler="h", dedupe_ttl=Duration(seconds=1))),
    ("dedupe_ttl", "must not be negative", JobSpec(handler="h", dedupe_key="k", dedupe_ttl=Duration(seconds=-1))),
    ("concurrency_key", "at most 200 characters", JobSpec(handler="h", concurrency_key="k" * 201)),
    ("concurrency_key", "U+007F", JobSpec(handler="h", concurrency_key="\x7f")),
    ("concurrency_limit", "needs a concurrency_key", JobSpec(handler="h", concurrency_limit=2)),
    ("concurrency_limit", "from 1 to 10000", JobSpec(handler="h", concurrency_key="k", concurrency_limit=-1)),
    ("labels", "at most 32", JobSpec(handler="h", labels={str(number): "" for number in range(33)})),
    ('labels[""]', "empty key", JobSpec(handler="h", labels={"": "v"})),
    ('labels["' + "k" * 63 + '"]', "at most 63", JobSpec(handler="h", labels={"k" * 64: "v"})),
    ('labels["x"]', "at most 200", JobSpec(handler="h", labels={"x": "v" * 201})),
    ('labels["x"]', "U+0000", JobSpec(handler="h", labels={"x": "\x00"})),
    ("traceparent", "W3C trace context", JobSpec(handler="h", traceparent="00-" + "0" * 32 + "-" + "a" * 16 + "-01")),
    ("traceparent", "W3C trace context", JobSpec(handler="h", traceparent="garbage")),
]


@pytest.fixture
async def untouched(node: ApiNode) -> AsyncIterator[ApiNode]:
    """A node in whose database nothing may have been stored at the end."""
    yield node
    counts = await node.database.run(
        "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM handlers), (SELECT count(*) FROM dedupe_keys),"
        " (SELECT count(*) FROM namespaces)"
    )
    assert counts == [(0, 0, 0, 1)]
    assert {code for _, code, _ in node.calls} <= {"INVALID_ARGUMENT"}


def check(refusal: Refusal, field: str, words: str) -> None:
    assert refusal.domain == "shardwheel"
    assert field in refusal.fields, refusal
    assert words in refusal.fields[field], refusal
    assert refusal.message


async def test_every_bad_field_of_a_job_is_refused_by_name(untouched: ApiNode) -> None:
    for field, words, spec in BAD_JOBS:
        async with refused(INVALID) as refusals:
            await untouched.jobs.SubmitJob(pb.SubmitJobRequest(job=spec))
        check(refusals[0], f"job.{field}", words)
        assert refusals[0].reason == "INVALID_VALUE"


async def test_every_bad_field_is_refused_in_a_batch_with_its_item(untouched: ApiNode) -> None:
    good = JobSpec(handler="h")
    for field, words, spec in BAD_JOBS:
        if len(spec.payload) > KIB * KIB:
            continue
        request = pb.SubmitJobsRequest(jobs=[good, spec, good])
        async with refused(INVALID) as refusals:
            await untouched.jobs.SubmitJobs(request)
        check(refusals[0], f"jobs[1].{field}", words)
        assert refusals[0].metadata == {"refused_items": "1", "refused_count": "1"}


def bad_requests() -> Iterator[tuple[str, Message, str, str]]:
    """Yield (method, request, field, words of the answer)."""
    good = JobSpec(handler="h")
    yield "SubmitJob", pb.SubmitJobRequest(), "job", "is required"
    yield "SubmitJob", pb.SubmitJobRequest(namespace="Shop", job=good), "namespace", "lower-case"
    yield "SubmitJob", pb.SubmitJobRequest(namespace="n" * 64, job=good), "namespace", "at most 63"
    yield "SubmitJob", pb.SubmitJobRequest(namespace="a\x00", job=good), "namespace", "lower-case"
    yield "SubmitJobs", pb.SubmitJobsRequest(), "jobs", "1 to 1000"
    yield "SubmitJobs", pb.SubmitJobsRequest(jobs=[good] * 1001), "jobs", "at most 1000"
    big = JobSpec(handler="h", payload=bytes(256 * KIB))
    yield "SubmitJobs", pb.SubmitJobsRequest(jobs=[big] * 17), "jobs", "at most 4194304 bytes"
    yield "GetJob", pb.GetJobRequest(), "id", "positive"
    yield "GetJob", pb.GetJobRequest(id=-5), "id", "positive"
    yield "CancelJob", pb.CancelJobRequest(id=0), "id", "positive"
    yield "CancelJob", pb.CancelJobRequest(id=5, reason="r" * 1001), "reason", "at most 1000"
    yield "CancelJob", pb.CancelJobRequest(id=5, reason="\x00"), "reason", "U+0000"
    yield "RetryJob", pb.RetryJobRequest(id=-1), "id", "positive"
    yield "WaitJob", pb.WaitJobRequest(id=5, max_wait=Duration(seconds=-1)), "max_wait", "negative"
    yield "WaitJob", pb.WaitJobRequest(id=5, max_wait=Duration(seconds=2**62)), "max_wait", "at most"
    yield "ListJobs", pb.ListJobsRequest(handler="no spaces"), "handler", "letters"
    yield "ListJobs", pb.ListJobsRequest(states=[Job.STATE_UNSPECIFIED]), "states", "PENDING, RUNNING"
    unknown = pb.ListJobsRequest.FromString(b"\x1a\x01\x63")
    assert list(unknown.states) == [99]
    yield "ListJobs", unknown, "states", "CANCELLED"
    yield "ListJobs", pb.ListJobsRequest(labels={"": "x"}), 'labels[""]', "empty key"
    yield "ListJobs", pb.ListJobsRequest(schedule_id=-1), "schedule_id", "positive"
    yield "ListJobs", pb.ListJobsRequest(created_from=Timestamp(seconds=1)), "created_from", "2000 to 2199"
    yield "ListJobs", pb.ListJobsRequest(created_before=Timestamp(nanos=-1)), "created_before", "nanos"
    yield "ListJobs", pb.ListJobsRequest(page_size=-1), "page_size", "negative"
    for token in ("x", "AAAA", "é", "t" * 201, "AQAAAAAAAAAAAAAAAAAAAAAAAAAA", "\x00"):
        yield "ListJobs", pb.ListJobsRequest(page_token=token), "page_token", "next_page_token"


def bad_admin_requests() -> Iterator[tuple[str, Message, str, str]]:
    yield "ListHandlers", admin_pb.ListHandlersRequest(namespace="É"), "namespace", "lower-case"
    yield "ListWorkers", admin_pb.ListWorkersRequest(namespace="_"), "namespace", "lower-case"
    yield "PauseHandler", admin_pb.PauseHandlerRequest(), "handler", "is required"
    yield "PauseHandler", admin_pb.PauseHandlerRequest(handler="h", note="\x00"), "note", "U+0000"
    yield "ResumeHandler", admin_pb.ResumeHandlerRequest(handler="a b"), "handler", "letters"
    yield "CreateNamespace", admin_pb.CreateNamespaceRequest(), "namespace", "is required"
    yield "CreateNamespace", admin_pb.CreateNamespaceRequest(namespace="A"), "namespace", "lower-case"
    retry = RetryPolicy(max_attempts=5000)
    yield "CreateNamespace", admin_pb.CreateNamespaceRequest(namespace="a", retry=retry), "retry.max_attempts", "1000"
    timeouts = Timeouts(total_timeout=Duration())
    request = admin_pb.CreateNamespaceRequest(namespace="a", timeouts=timeouts)
    yield "CreateNamespace", request, "timeouts.total_timeout", "above 0"


async def test_every_bad_request_is_refused_by_field(untouched: ApiNode) -> None:
    for stub, cases in ((untouched.jobs, bad_requests()), (untouched.admin, bad_admin_requests())):
        for method, request, field, words in cases:
            async with refused(INVALID) as refusals:
                await getattr(stub, method)(request)
            check(refusals[0], field, words)


async def test_all_that_is_wrong_is_said_at_once(untouched: ApiNode) -> None:
    spec = JobSpec(handler="", priority=9, labels={"": "x"}, traceparent="t")
    async with refused(INVALID) as refusals:
        await untouched.jobs.SubmitJob(pb.SubmitJobRequest(namespace="Bad", job=spec))
    assert list(refusals[0].fields) == ["namespace", "job.handler", "job.priority", 'job.labels[""]', "job.traceparent"]
    assert refusals[0].message.endswith("(and 4 more)")


async def test_a_batch_that_is_wrong_all_over_still_gets_an_answer_that_fits(untouched: ApiNode) -> None:
    bad = JobSpec(
        handler="h" * 300, name="\N{GRINNING FACE}" * 300, labels={"é" * 70 + str(n): "\x00" for n in range(32)}
    )
    request = pb.SubmitJobsRequest(jobs=[JobSpec(handler="h"), *[bad] * 299])
    async with refused(INVALID) as refusals:
        await untouched.jobs.SubmitJobs(request)
    assert refusals[0].metadata == {"refused_items": "1-299", "refused_count": "299"}
    assert list(refusals[0].fields)[:2] == ["jobs[1].handler", "jobs[1].name"]


async def test_refused_items_are_named_in_ranges(untouched: ApiNode) -> None:
    specs = [JobSpec(handler="h" if number in (3, 4, 7) else "") for number in range(10)]
    async with refused(INVALID) as refusals:
        await untouched.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=specs))
    assert refusals[0].metadata["refused_items"] == "0-2,5-6,8-9"


async def test_fields_of_a_later_version_are_refused_with_their_place(untouched: ApiNode) -> None:
    async def raw(method: str, data: bytes) -> None:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = untouched.channel.unary_unary(
            f"/shardwheel.v1.JobService/{method}"
        )
        await call(data)

    unknown = b"\xfa\x3f\x03abc"  # field 1023
    spec = JobSpec(handler="h").SerializeToString()
    retry = b"\x42" + bytes([len(unknown)]) + unknown
    second = b"\x12" + bytes([len(spec)]) + spec + b"\x12" + bytes([len(unknown)]) + unknown
    for method, data, field in (
        ("GetJob", pb.GetJobRequest(id=5).SerializeToString() + unknown, "1023"),
        ("SubmitJob", b"\x12" + bytes([len(spec + unknown)]) + spec + unknown, "job.1023"),
        ("SubmitJob", b"\x12" + bytes([len(spec + retry)]) + spec + retry, "job.retry.1023"),
        ("SubmitJobs", second, "jobs[1].1023"),
    ):
        async with refused(INVALID) as refusals:
            await raw(method, data)
        assert (refusals[0].reason, list(refusals[0].fields)) == ("UNKNOWN_FIELD", [field])
    for data in (b"\xff", b"\x12\x05", b"\x12\x04\x0a\x02\xff\xff", b"\x12\x05\x0a\x03\xed\xa0\x80"):
        async with refused(INVALID) as refusals:
            await raw("SubmitJob", data)
        assert refusals[0].reason == "MALFORMED_REQUEST"


async def test_a_bulk_submit_stops_at_a_bad_batch_and_counts_the_stored_ones(node: ApiNode) -> None:
    good = pb.BulkSubmitJobsRequest(jobs=[JobSpec(handler="h")] * 3)
    bad = pb.BulkSubmitJobsRequest(jobs=[JobSpec(handler="h"), JobSpec()])
    async with refused(INVALID) as refusals:
        await node.jobs.BulkSubmitJobs(iter([good, good, bad, good]))
    assert "jobs[1].handler" in refusals[0].fields
    assert refusals[0].metadata == {"stored_batches": "2", "refused_items": "1", "refused_count": "1"}
    assert await node.database.run("SELECT count(*) FROM jobs") == [(6,)]

    call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = node.channel.stream_unary(
        "/shardwheel.v1.JobService/BulkSubmitJobs"
    )
    async with refused(INVALID) as refusals:
        await call(iter([good.SerializeToString(), b"\xff"]))
    assert (refusals[0].reason, refusals[0].metadata["stored_batches"]) == ("MALFORMED_REQUEST", "1")


async def test_the_payload_limit_is_exact_and_can_be_raised(database: str) -> None:
    async with ApiNode(database, limits=Limits(payload_bytes=1024 * KIB)) as node:
        full = JobSpec(handler="h", payload=bytes(1024 * KIB))
        job = (await node.jobs.SubmitJob(pb.SubmitJobRequest(job=full))).job
        assert len((await node.jobs.GetJob(pb.GetJobRequest(id=job.id))).payload) == 1024 * KIB
        full.payload += b"x"
        async with refused(INVALID) as refusals:
            await node.jobs.SubmitJob(pb.SubmitJobRequest(job=full))
        check(refusals[0], "job.payload", "1048577 bytes")
    async with ApiNode(database) as node:
        full.payload = bytes(256 * KIB)
        assert (await node.jobs.SubmitJob(pb.SubmitJobRequest(job=full))).created


async def test_a_message_beyond_all_limits_is_refused_by_the_transport(node: ApiNode) -> None:
    spec = JobSpec(handler="h", payload=bytes(7 * KIB * KIB))
    with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
        await node.jobs.SubmitJob(pb.SubmitJobRequest(job=spec))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="h")))).created


async def test_a_namespace_has_a_limited_number_of_handlers(database: str) -> None:
    async with ApiNode(database, max_handlers=3) as node:
        specs = [JobSpec(handler=f"h{number}") for number in range(3)]
        await node.jobs.SubmitJobs(pb.SubmitJobsRequest(jobs=specs))
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED) as refusals:
            await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="one.more")))
        assert (refusals[0].reason, refusals[0].metadata["limit"]) == ("LIMIT_REACHED", "3")
        assert refusals[0].retry_after_s is not None
        assert (await node.jobs.SubmitJob(pb.SubmitJobRequest(job=JobSpec(handler="h1")))).created
