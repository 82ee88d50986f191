"""The rules, at their borders. What each refusal says over the wire is in the integration tests."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from server.api.errors import InvalidRequest
from server.api.validation import (
    Limits,
    Problems,
    check_batch,
    check_instant,
    check_job,
    check_namespace,
    check_span,
    check_text,
)
from server.domain.errors import InvalidInput
from shardwheel.v1.job_pb2 import JobSpec, RetryPolicy, Timeouts

LIMITS = Limits()

AT_THE_BORDER = [
    JobSpec(handler="h" * 200, name="é" * 200, priority=5, content_type="t" * 200),
    JobSpec(handler="A-z.0_9/x", priority=1, payload=bytes(256 * 1024)),
    JobSpec(handler="h", due_at=Timestamp(seconds=946_684_800)),
    JobSpec(handler="h", due_at=Timestamp(seconds=7_258_118_399, nanos=999_999_999)),
    JobSpec(handler="h", delay=Duration(seconds=3660 * 86_400)),
    JobSpec(handler="h", delay=Duration()),
    JobSpec(handler="h", retry=RetryPolicy(max_attempts=1000, multiplier=100)),
    JobSpec(handler="h", retry=RetryPolicy(initial_delay=Duration(seconds=5), max_delay=Duration(seconds=5))),
    JobSpec(handler="h", retry=RetryPolicy(initial_delay=Duration(), max_delay=Duration(seconds=30 * 86_400))),
    JobSpec(handler="h", retry=RetryPolicy(non_retryable_error_types=["E" * 200] * 100)),
    JobSpec(handler="h", timeouts=Timeouts(start_timeout=Duration(nanos=1))),
    JobSpec(handler="h", dedupe_key="\N{GRINNING FACE}" * 200, dedupe_ttl=Duration(seconds=10**8)),
    JobSpec(handler="h", concurrency_key="k" * 200, concurrency_limit=10_000),
    JobSpec(handler="h", labels={"k" * 62 + str(n): "v" * 200 for n in range(10)}),
    JobSpec(handler="h", traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]


@pytest.mark.parametrize("spec", AT_THE_BORDER, ids=range(len(AT_THE_BORDER)))
def test_what_is_just_allowed_passes(spec: JobSpec) -> None:
    problems = Problems()
    check_job(problems, "job", spec, LIMITS)
    problems.check()


@given(st.text(max_size=300))
def test_a_text_that_passes_can_be_stored(text: str) -> None:
    problems = Problems()
    check_text(problems, "f", text, 200)
    sound = len(text) <= 200 and all(c >= " " and c != "\x7f" for c in text)
    assert (not problems.found) == sound


@pytest.mark.parametrize("text", ["\x00", "a\ud800", "\udfff", "\x1f"], ids=ascii)
def test_a_text_that_cannot_be_stored_is_refused_even_in_notes(text: str) -> None:
    problems = Problems()
    check_text(problems, "f", text, 200, lines=True)
    [found] = problems.found
    str(found).encode()
    check_text(problems, "f", "two\nlines\tand a tab", 200, lines=True)
    assert len(problems.found) == 1


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_instant_and_span_is_judged_in_bounds(seconds: int, nanos: int) -> None:
    problems = Problems()
    check_instant(problems, "at", Timestamp(seconds=seconds, nanos=nanos))
    assert (not problems.found) == (946_684_800 <= seconds < 7_258_118_400 and 0 <= nanos < 10**9)
    problems = Problems()
    sound = check_span(problems, "for", Duration(seconds=seconds, nanos=nanos))
    assert sound == (not problems.found)
    total = seconds * 10**9 + nanos
    assert sound == (0 <= total <= 3660 * 86_400 * 10**9 and 0 <= nanos < 10**9 and seconds >= 0)


def test_an_empty_namespace_is_the_default_one() -> None:
    problems = Problems()
    assert check_namespace(problems, "") == "default"
    assert check_namespace(problems, "a" * 63) == "a" * 63
    problems.check()


def test_problems_are_bounded_and_raised_together() -> None:
    problems = Problems()
    check_batch(problems, [JobSpec(priority=9, traceparent="t")] * 1000, 10, LIMITS)
    assert len(problems.found) == Problems.MAX_FOUND
    assert problems.metadata == {"refused_count": "1000", "refused_items": "0-999"}
    with pytest.raises(InvalidRequest) as caught:
        problems.check()
    assert len(caught.value.violations) == Problems.MAX_FOUND


def test_scattered_items_are_cut_to_a_readable_length() -> None:
    problems = Problems()
    check_batch(problems, [JobSpec(handler="h" if n % 2 else "") for n in range(1000)], 10, LIMITS)
    text = problems.metadata["refused_items"]
    assert len(text) <= 402
    assert text.startswith("0,2,4,")
    assert text.endswith(",…")


@pytest.mark.parametrize(
    "sizes", [{"payload_bytes": 1024 * 1024 + 1}, {"payload_bytes": 0}, {"batch_jobs": 1001}, {"batch_bytes": 5 << 20}]
)
def test_an_operator_cannot_lift_the_hard_limits(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="has to be from"):
        Limits(**sizes)
