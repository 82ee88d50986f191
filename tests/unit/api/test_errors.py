"""Every error has its status, and every status fits into the trailers of an answer."""

import logging
from datetime import timedelta

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from server.api import errors
from server.api.errors import InvalidRequest, OutcomeUnknown, api_error, status_of
from server.domain.errors import InvalidInput
from server.engine import ports
from server.store.catalog import CatalogFull, NamespaceConflict, UnknownHandler, UnknownNamespace
from server.store.errors import Refused, Unavailable, UnknownOutcome

SOFT_LIMIT = 8192


def trailers(error: Exception) -> tuple[grpc.StatusCode, status_pb2.Status, int]:
    """Return code, details and the bytes that the answer takes in HTTP/2 trailers."""
    status = status_of(error, "/test")
    assert status.trailing_metadata is not None
    [(name, value)] = status.trailing_metadata
    assert isinstance(value, bytes)
    # Every byte that is not printable ASCII becomes three, and details grow by base64; each header counts 32 more.
    text = sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in status.details.encode())
    size = text + len(value) * 4 // 3 + 4 + len(name) + len("grpc-message") + 3 * 32
    return status.code, status_pb2.Status.FromString(value), size


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (InvalidInput("f", "v", "is wrong"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE"),
        (UnknownNamespace("n"), grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND"),
        (UnknownHandler("n", "h"), grpc.StatusCode.NOT_FOUND, "HANDLER_NOT_FOUND"),
        (NamespaceConflict("n"), grpc.StatusCode.ALREADY_EXISTS, "NAMESPACE_EXISTS"),
        (CatalogFull("handlers", 5), grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_REACHED"),
        (Unavailable("away"), grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE"),
        (UnknownOutcome("cut"), grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN"),
        (ports.StoreUnavailable("away"), grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE"),
        (ports.OutcomeUnknown("cut"), grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN"),
        (OutcomeUnknown(repeat_is_safe=False), grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN"),
        (errors.Exhausted("FULL", "full"), grpc.StatusCode.RESOURCE_EXHAUSTED, "FULL"),
        (errors.WrongState("S", "wrong"), grpc.StatusCode.FAILED_PRECONDITION, "S"),
        (errors.Aborted("A", "changed"), grpc.StatusCode.ABORTED, "A"),
        (Refused("22021", "no"), grpc.StatusCode.INTERNAL, "INTERNAL"),
        (KeyError("x"), grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_its_code_reason_and_details(error: Exception, code: grpc.StatusCode, reason: str) -> None:
    got, status, _ = trailers(error)
    assert got is code
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason, "shardwheel")
    kinds = {detail.type_url.rpartition(".")[2] for detail in status.details}
    waits = code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert ("RetryInfo" in kinds) == waits
    assert ("BadRequest" in kinds) == (code is grpc.StatusCode.INVALID_ARGUMENT)


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}", "\x00", "\ud800"], ids=ascii)
def test_an_answer_fits_whatever_was_sent(letter: str) -> None:
    violations = [InvalidInput(letter * 100, letter * 10_000, letter * 1000) for _ in range(1000)]
    _, status, size = trailers(InvalidRequest(violations, metadata={"refused_items": "1," * 300}))
    assert size < SOFT_LIMIT
    assert status.message.endswith("(and 999 more)")
    bad = error_details_pb2.BadRequest()
    assert status.details[-1].Unpack(bad)
    assert len(bad.field_violations) >= 1


def test_what_was_not_foreseen_is_logged_once_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        _, status, _ = trailers(RuntimeError("password"))
    assert "password" not in str(status)
    [record] = caplog.records
    assert record.__dict__["incident"] in status.message


def test_an_outcome_says_whether_a_repeat_is_safe() -> None:
    unsafe, safe = OutcomeUnknown(repeat_is_safe=False), OutcomeUnknown(repeat_is_safe=True)
    assert "dedupe_key" in unsafe.message
    assert "safe to repeat" in safe.message
    read = api_error(UnknownOutcome("cut"))
    assert read is not None
    assert read.metadata == safe.metadata == {"repeat_is_safe": "true"}
    assert read.retry_after == timedelta(seconds=1)
