"""From a spec to the job that is stored."""

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from server.api.convert import duration, instant, job_message, policies_of, retry_message, span, timeouts_message
from server.api.convert import timestamp as to_timestamp
from server.api.new_jobs import JobFactory, created_record
from server.domain.job import NewJob, Submitted
from server.domain.policies import NO_POLICIES, Policies
from server.store.catalog import Handler, Namespace
from shardwheel.v1.job_pb2 import JobSpec, RetryPolicy, Timeouts

NOW = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
NAMESPACE = Namespace(
    namespace_id=3, name="shop", policies=Policies(total=timedelta(hours=1)), created_at=NOW, changed_at=NOW
)
HANDLER = Handler(handler_id=9, namespace_id=3, name="h", policies=Policies(max_attempts=2), changed_at=NOW)


def make(**fields: object) -> NewJob:
    spec = JobSpec(handler="h", **fields)  # type: ignore[arg-type]
    # As it arrives: the order of labels and the presence of default values are those of the wire.
    return JobFactory(NAMESPACE, {"h": HANDLER}).make(JobSpec.FromString(spec.SerializeToString()))


def content_hash(**fields: object) -> bytes:
    dedupe = make(dedupe_key="k", **fields).dedupe
    assert dedupe is not None
    return dedupe.content_hash


def test_defaults_are_filled_in() -> None:
    job = make()
    assert (job.namespace_id, job.handler_id, job.priority, job.due_at, job.delay) == (3, 9, 3, None, timedelta(0))
    assert (job.backoff.max_attempts, job.backoff.multiplier, job.limits.total) == (2, 2.0, timedelta(hours=1))
    assert (job.dedupe, job.concurrency_key, job.concurrency_limit, job.labels, job.traceparent) == (
        None,
        None,
        1,
        None,
        None,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": b"x"},
        {"content_type": "text/plain"},
        {"name": "n"},
        {"priority": 2},
        {"due_at": Timestamp(seconds=10**9)},
        {"delay": Duration(seconds=10**9)},
        {"delay": Duration()},
        {"retry": RetryPolicy(max_attempts=2)},
        {"timeouts": Timeouts(start_timeout=Duration(seconds=1))},
        {"timeouts": Timeouts(attempt_timeout=Duration(seconds=1))},
        {"labels": {"a": "b"}},
        {"labels": {"a": "c"}},
        {"concurrency_key": "c"},
        {"concurrency_key": "c", "concurrency_limit": 2},
    ],
    ids=str,
)
def test_whatever_is_asked_for_counts_as_content(fields: dict[str, object]) -> None:
    assert content_hash(**fields) != content_hash()
    assert content_hash(**fields) == content_hash(**fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"priority": 3}),
        ({}, {"retry": RetryPolicy()}),
        ({}, {"timeouts": Timeouts()}),
        ({}, {"dedupe_ttl": Duration(seconds=5)}),
        ({}, {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}),
        ({"labels": {"a": "1", "b": "2"}}, {"labels": {"b": "2", "a": "1"}}),
        ({"concurrency_key": "c"}, {"concurrency_key": "c", "concurrency_limit": 1}),
        ({"delay": Duration(nanos=1500)}, {"delay": Duration(nanos=2000)}),
    ],
    ids=str,
)
def test_other_ways_to_say_the_same_are_the_same_content(one: dict[str, object], other: dict[str, object]) -> None:
    assert content_hash(**one) == content_hash(**other)


def test_texts_cannot_slip_from_one_field_into_the_next() -> None:
    assert content_hash(name="ab", content_type="c") != content_hash(name="a", content_type="bc")
    assert content_hash(payload=b"1", name="") != content_hash(payload=b"", name="1")


def test_instants_and_spans_are_rounded_up_so_that_nothing_is_early() -> None:
    assert instant(Timestamp(seconds=10**9, nanos=1)) == datetime(2001, 9, 9, 1, 46, 40, 1, tzinfo=UTC)
    assert instant(Timestamp(seconds=10**9, nanos=999_999_999)) == datetime(2001, 9, 9, 1, 46, 41, tzinfo=UTC)
    assert span(Duration(nanos=1)) == timedelta(microseconds=1)
    for moment in (NOW, datetime(2199, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)):
        assert instant(to_timestamp(moment)) == moment
    for length in (timedelta(0), timedelta(days=3660), timedelta(microseconds=1_000_001)):
        assert span(duration(length)) == length


def test_policies_survive_the_way_through_messages() -> None:
    policies = Policies(
        max_attempts=3,
        initial=timedelta(0),
        multiplier=1.5,
        maximum=timedelta(seconds=1),
        non_retryable=("E", "F"),
        start=timedelta(seconds=2),
        attempt=timedelta(milliseconds=1),
        total=timedelta(days=1),
    )
    assert policies_of(retry_message(policies), timeouts_message(policies)) == policies
    assert policies_of(RetryPolicy(), Timeouts()) is NO_POLICIES


def test_a_created_job_is_shown_as_it_was_asked_for() -> None:
    job = make(name="n", labels={"a": "b"}, concurrency_key="c", delay=Duration(seconds=60))
    due = NOW + timedelta(minutes=1)
    record = created_record(job, Submitted(job_id=4097, created=True, due_at=due, created_at=NOW))
    message = job_message(record, "shop", "h")
    assert (message.id, message.namespace, message.handler, message.name) == (4097, "shop", "h", "n")
    assert instant(message.due_at) == due
    assert instant(message.deadline_at) == due + timedelta(hours=1)
    assert (message.concurrency_key, message.concurrency_limit, dict(message.labels)) == ("c", 1, {"a": "b"})
    assert not message.HasField("error")
    assert not message.HasField("started_at")
