"""Addresses, durations, policies, back-off, batches: small pure parts."""

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwheel.v1 import job_pb2
from shardwheel.v1.worker_service_pb2 import AttemptRef, Completed, Result
from worker_sdk import ConfigurationError, Gap, NewJob, NewSchedule, PayloadError, RetryPolicy, Timeouts
from worker_sdk.backoff import Backoff, backoff_delay_s
from worker_sdk.bulk import BATCH_BYTES, BATCH_JOBS, Batcher
from worker_sdk.codec import checked_size
from worker_sdk.connection import Connection
from worker_sdk.durations import as_seconds, as_timedelta
from worker_sdk.policies import retry_from_proto, retry_to_proto, timeouts_from_proto, timeouts_to_proto
from worker_sdk.session import batched_results
from worker_sdk.tls import Tls


def test_settings_come_from_arguments_then_from_the_environment() -> None:
    environment = {"SHARDWHEEL_ADDRESS": "a:1, b:2", "SHARDWHEEL_NAMESPACE": "tenant"}
    assert Connection.resolve(environment={}) == Connection(addresses=("localhost:7400",), namespace="default")
    assert Connection.resolve(environment=environment) == Connection(addresses=("a:1", "b:2"), namespace="tenant")
    given = Connection.resolve(address="[::1]:7", namespace="other", token="t", environment=environment)
    assert (given.addresses, given.namespace) == (("[::1]:7",), "other")
    assert given.metadata == (("authorization", "Bearer t"),)


@pytest.mark.parametrize(
    "address", ["localhost", ":7400", "a:0", "a:65536", "a:b", "http://a:1", "a b:1", "a:1,", "::1:7"]
)
def test_malformed_addresses_are_refused_with_the_remedy(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not host:port; write for example 'localhost:7400'"):
        Connection.resolve(address=address, environment={})


def test_certificates_have_to_be_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ca: cannot read"):
        Connection.resolve(ca=tmp_path / "missing.pem", environment={})
    (tmp_path / "ca.pem").write_bytes(b"pem")
    assert Tls(ca=tmp_path / "ca.pem").read().ca == b"pem"


def test_spans_are_seconds_or_timedeltas() -> None:
    assert as_timedelta(1.5, "x") == timedelta(seconds=1.5)
    assert as_timedelta(timedelta(days=3), "x") == timedelta(days=3)
    assert as_seconds(2, "x") == 2.0
    bad: list[object] = [-1, float("nan"), float("inf"), True, "5", None, timedelta(seconds=-1), 1e300]
    for span in bad:
        with pytest.raises(ConfigurationError, match="delay: "):
            as_timedelta(span, "delay")  # type: ignore[arg-type]


def test_policies_survive_the_round_trip() -> None:
    policy = RetryPolicy(
        max_attempts=3, initial_delay=timedelta(seconds=1.5), multiplier=3.0, max_delay=timedelta(hours=1),
        non_retryable_error_types=("KeyError", "X"),
    )  # fmt: skip
    assert retry_from_proto(retry_to_proto(policy)) == policy
    assert retry_from_proto(job_pb2.RetryPolicy()) == RetryPolicy()
    timeouts = Timeouts(start=timedelta(seconds=1), attempt=timedelta(minutes=1), total=timedelta(days=2))
    assert timeouts_from_proto(timeouts_to_proto(timeouts)) == timeouts
    assert timeouts_from_proto(job_pb2.Timeouts()) == Timeouts()


def test_policies_refuse_what_cannot_be_meant() -> None:
    with pytest.raises(ConfigurationError, match="max_attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ConfigurationError, match="multiplier"):
        RetryPolicy(multiplier=0)
    with pytest.raises(ConfigurationError, match="max_delay"):
        RetryPolicy(max_delay=-1)
    with pytest.raises(ConfigurationError, match="attempt: a limit of zero"):
        Timeouts(attempt=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"due_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "give one of them"),
        ({"due_at": datetime(2030, 1, 1)}, "due_at: has no time zone"),  # noqa: DTZ001
        ({"priority": 0}, "priority: 0 is not 1"),
        ({"priority": 6}, "priority: 6 is not 1"),
        ({"concurrency_limit": 0}, "concurrency_limit: 0"),
    ],
)
def test_jobs_refuse_what_cannot_be_meant(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dataclasses.replace(NewJob(handler="h"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cron": ""}, "exactly one of"),
        ({"every": 5}, "exactly one of"),
        ({"cron": "", "every": 5, "gap": Gap.SKIP}, "belong to cron"),
        ({"anchor": datetime(2030, 1, 1, tzinfo=UTC)}, "anchor belongs to every"),
        ({"start_at": datetime(2030, 1, 1)}, "start_at: .* has no time zone"),  # noqa: DTZ001
    ],
)
def test_schedules_refuse_what_cannot_be_meant(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dataclasses.replace(NewSchedule(name="s", handler="h", cron="* * * * *"), **changes)  # type: ignore[arg-type]


@given(failures=st.integers(1, 10_000), draw=st.floats(0, 1))
def test_back_off_doubles_up_to_its_cap_with_jitter(failures: int, draw: float) -> None:
    delay = backoff_delay_s(failures, initial_s=0.1, maximum_s=2.0, draw=draw)
    bound = min(2.0, 0.1 * 2 ** min(failures - 1, 20))
    assert bound / 2 <= delay <= bound


def test_back_off_starts_anew_after_a_success() -> None:
    backoff = Backoff(draw=lambda: 1.0)
    assert [backoff.next_delay_s() for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    backoff.reset()
    assert backoff.next_delay_s() == 0.1


def test_sizes_are_checked() -> None:
    assert checked_size(b"ab", 2, "result") == b"ab"
    with pytest.raises(PayloadError, match="result is 3 bytes, more than the limit of 2"):
        checked_size(b"abc", 2, "result")


@settings(max_examples=20)
@given(st.lists(st.integers(0, 1 << 20), max_size=12))
def test_batches_keep_to_their_size_and_order(sizes: list[int]) -> None:
    batcher = Batcher("ns")
    batches = []
    for number, size in enumerate(sizes):
        full = batcher.add(job_pb2.JobSpec(name=str(number), payload=b"x" * size))
        batches += [full] if full is not None else []
    rest = batcher.rest()
    batches += [rest] if rest is not None else []
    assert [job.name for batch in batches for job in batch.jobs] == [str(i) for i in range(len(sizes))]
    assert all(batch.ByteSize() <= BATCH_BYTES + 100 for batch in batches)
    assert all(batch.jobs and batch.namespace == "ns" for batch in batches)


def test_batches_keep_to_their_number() -> None:
    batcher = Batcher("ns")
    full = [batcher.add(job_pb2.JobSpec()) for _ in range(BATCH_JOBS + 1)]
    assert [batch is not None for batch in full] == [False] * BATCH_JOBS + [True]


@settings(max_examples=20)
@given(st.lists(st.sampled_from([0, 10, 1 << 19, 1 << 20]), max_size=12))
def test_results_go_in_messages_below_the_usual_limit(sizes: list[int]) -> None:
    results = [
        Result(attempt=AttemptRef(job_id=i, claim=1), completed=Completed(result=b"x" * size))
        for i, size in enumerate(sizes)
    ]
    batches = list(batched_results(results))
    assert [result.attempt.job_id for batch in batches for result in batch.results] == list(range(len(sizes)))
    assert all(batch.ByteSize() <= (2 << 20) + 1000 for batch in batches)
    assert all(batch.results for batch in batches)
