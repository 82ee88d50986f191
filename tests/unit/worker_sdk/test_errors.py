"""What errors say, and how they are read off the wire."""

from datetime import timedelta

import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from worker_sdk import errors
from worker_sdk.error_details import error_details
from worker_sdk.errors import ApiError, BulkSubmitError, ErrorDetails, InvalidArgument, ShardwheelError, Violation

KEY = "grpc-status-details-bin"


def status() -> status_pb2.Status:
    message = status_pb2.Status(code=3, message="refused")
    message.details.add().Pack(
        error_details_pb2.ErrorInfo(reason="BAD", domain="shardwheel", metadata={"a": "1", "b": "2"})
    )
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="job.handler", description="must not be empty", reason="EMPTY")
    bad.field_violations.add(field="job.name", description="is too long")
    message.details.add().Pack(bad)
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    message.details.add().Pack(retry)
    message.details.add().Pack(error_details_pb2.DebugInfo(detail="ignored"))
    return message


def test_details_are_read() -> None:
    assert error_details([("other", "x"), (KEY, status().SerializeToString())]) == ErrorDetails(
        reason="BAD",
        domain="shardwheel",
        metadata={"a": "1", "b": "2"},
        violations=(
            Violation(field="job.handler", description="must not be empty", reason="EMPTY"),
            Violation(field="job.name", description="is too long"),
        ),
        retry_delay=timedelta(seconds=1.5),
    )


def test_no_details_are_none() -> None:
    assert error_details([]) == ErrorDetails()
    assert error_details([(KEY, "text")]) == ErrorDetails()


@given(st.binary(max_size=60))
def test_garbage_is_left_out(garbage: bytes) -> None:
    assert isinstance(error_details([(KEY, garbage)]), ErrorDetails)


@given(st.integers(0, 200))
def test_what_is_cut_short_does_no_harm(length: int) -> None:
    assert isinstance(error_details([(KEY, status().SerializeToString()[:length])]), ErrorDetails)


def test_errors_name_what_their_text_leaves_out() -> None:
    details = ErrorDetails(
        violations=(
            Violation(field="job.handler", description="must not be empty"),
            Violation(field="job.name", description="is too long"),
        )
    )
    error = InvalidArgument("job.handler must not be empty", code="INVALID_ARGUMENT", details=details)
    assert str(error) == "job.handler must not be empty; job.name: is too long"
    assert str(ApiError("", code="UNKNOWN")) == "UNKNOWN"


def test_a_broken_bulk_submit_counts() -> None:
    cause = errors.Unavailable("reset")
    error = BulkSubmitError(stored=20_000, in_doubt=1000, cause=cause)
    assert str(error) == "bulk submit broke off: 20000 jobs are stored, the next 1000 may be; reset"
    assert error.__cause__ is cause


@pytest.mark.parametrize("builtin", [(errors.DeadlineExceeded, TimeoutError), (errors.PayloadError, ValueError)])
def test_some_errors_are_also_what_python_calls_them(builtin: tuple[type, type]) -> None:
    assert issubclass(builtin[0], builtin[1])
    assert issubclass(builtin[0], ShardwheelError)
