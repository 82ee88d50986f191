"""A definition survives the way into the database and out to the client: it still asks for the same."""

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from server.api.new_jobs import JobFactory
from server.api.schedule_convert import CATCH_UPS, OVERLAPS, check_spec, spec_message
from server.api.validation import Limits, Problems
from server.domain.policies import NO_POLICIES
from server.domain.stored_schedule import ScheduleDefinition
from server.store.catalog import Handler, Namespace
from server.store.schedule_documents import (
    job_from_document,
    job_to_document,
    timing_from_document,
    timing_to_document,
)
from shardwheel.v1 import schedule_pb2 as pb
from shardwheel.v1.job_pb2 import JobSpec, RetryPolicy, Timeouts

CREATED = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
JOBS = JobFactory(
    Namespace(namespace_id=1, name="default", policies=NO_POLICIES, created_at=CREATED, changed_at=CREATED),
    {"h": Handler(handler_id=7, namespace_id=1, name="h", changed_at=CREATED)},
)

spans = st.builds(Duration, seconds=st.integers(1, 80_000), nanos=st.integers(0, 999_999_999))
instants = st.builds(Timestamp, seconds=st.integers(1_000_000_000, 7_000_000_000), nanos=st.integers(0, 999_999_999))
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)
crons = st.builds(
    pb.CronTiming,
    expression=st.sampled_from(
        ["@daily", "H H(0-6) * * *", "*/15 * * * * *", "0 0 13 * FRI", "5 4 L * *", "1 2 * * 5#2"]
    ),
    time_zone=st.sampled_from(["", "UTC", "Europe/Paris", "America/New_York"]),
    gap=st.sampled_from([0, 1, 2]),
    fold=st.sampled_from([0, 1, 2]),
)
intervals = st.builds(pb.IntervalTiming, every=spans, anchor=st.none() | instants)
jobs = st.builds(
    JobSpec,
    handler=st.just("h"),
    payload=st.binary(max_size=20),
    content_type=st.sampled_from(["", "application/json"]),
    name=texts,
    priority=st.integers(0, 5),
    concurrency_key=texts,
    labels=st.dictionaries(texts.filter(bool), texts, max_size=3),
    retry=st.none()
    | st.builds(
        RetryPolicy,
        max_attempts=st.integers(0, 1000),
        multiplier=st.just(0.0) | st.floats(1, 100),
        initial_delay=st.none() | spans,
        non_retryable_error_types=st.lists(texts.filter(bool), max_size=3),
    ),
    timeouts=st.none() | st.builds(Timeouts, start_timeout=st.none() | spans, total_timeout=st.none() | spans),
)


@st.composite
def specs(draw: st.DrawFn) -> pb.ScheduleSpec:
    spec = pb.ScheduleSpec(
        job=draw(jobs),
        overlap=draw(st.sampled_from(list(OVERLAPS))),
        catch_up=draw(st.sampled_from(list(CATCH_UPS))),
        catch_up_window=draw(st.none() | spans),
        start_at=draw(st.none() | st.just(Timestamp(seconds=1_000_000_000, nanos=5))),
        end_at=draw(st.none() | st.just(Timestamp(seconds=7_000_000_000))),
        jitter=draw(st.none() | spans),
    )
    match draw(st.sampled_from(["cron", "interval", "once_at"])):
        case "cron":
            spec.cron.CopyFrom(draw(crons))
        case "interval":
            spec.interval.CopyFrom(draw(intervals))
        case _:
            spec.once_at.CopyFrom(draw(instants))
    return spec


def definition_of(spec: pb.ScheduleSpec) -> ScheduleDefinition:
    problems = Problems()
    checked = check_spec(problems, "spec", "name", spec, Limits(), CREATED + timedelta(days=1))
    assert problems.found == []
    assert checked is not None
    return checked.draft(JOBS).settled(CREATED)


@given(specs())
def test_what_is_shown_can_be_sent_back(spec: pb.ScheduleSpec) -> None:
    definition = definition_of(spec)
    shown = spec_message(definition)
    again = definition_of(shown)
    assert again == definition
    assert again.asks_the_same_as(definition)
    assert spec_message(again) == shown
    expected = JobSpec()
    expected.CopyFrom(spec.job)
    assert shown.job == expected


@given(specs())
def test_what_is_stored_is_read_back_unchanged(spec: pb.ScheduleSpec) -> None:
    definition = definition_of(spec)
    assert timing_from_document(timing_to_document(definition.timing.spec)) == definition.timing.spec
    document = job_to_document(definition.job, definition.job_spec)
    job, job_spec = job_from_document(document, 1, 7, definition.job.payload)
    assert job_spec == definition.job_spec
    # Policies are stored in milliseconds, rounded up.
    assert (job.backoff.max_attempts, job.backoff.non_retryable, job.backoff.multiplier) == (
        definition.job.backoff.max_attempts,
        definition.job.backoff.non_retryable,
        definition.job.backoff.multiplier,
    )
    assert timedelta() <= job.backoff.initial - definition.job.backoff.initial < timedelta(milliseconds=1)
    assert (job.name, job.labels, job.concurrency_key) == (
        definition.job.name,
        definition.job.labels,
        definition.job.concurrency_key,
    )
    twice = job_from_document(job_to_document(job, job_spec), 1, 7, job.payload)
    assert twice == (job, job_spec)
