"""Turns what gRPC reports into the errors of `worker_sdk.errors`.

Nodes describe errors in `google.rpc.Status` details (ErrorInfo, BadRequest, RetryInfo; AIP-193). The generated classes
of those messages are in googleapis-common-protos, which is no dependency of this package; the few fields that are read
here are taken from the wire format directly.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import grpc
from google.protobuf import duration_pb2, message

from worker_sdk import errors
from worker_sdk.errors import ApiError, ErrorDetails, Violation

_DETAILS_KEY = "grpc-status-details-bin"

_CLASSES: dict[grpc.StatusCode, type[ApiError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: errors.FailedPrecondition,
    grpc.StatusCode.ABORTED: errors.Aborted,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    # Not by us, which would be an asyncio.CancelledError: a node that stops breaks off what takes too long.
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unimplemented,
}


def api_error(failure: grpc.aio.AioRpcError) -> ApiError:
    """Return the typed error for a failed call."""
    code = failure.code()
    kind = _CLASSES.get(code, errors.ServerError)
    return kind(failure.details() or "", code=code.name, details=error_details(failure.trailing_metadata()))


def error_details(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> ErrorDetails:
    """Read the details out of a call's trailing metadata. What is missing or unreadable is left out."""
    raw = next((value for key, value in trailing_metadata if key == _DETAILS_KEY), None)
    if not isinstance(raw, bytes):
        return ErrorDetails()
    try:
        return _read_status(raw)
    except (ValueError, message.DecodeError):
        return ErrorDetails()


def _read_status(raw: bytes) -> ErrorDetails:
    reason, domain = "", ""
    metadata: dict[str, str] = {}
    violations: list[Violation] = []
    retry_delay: timedelta | None = None
    for packed in _all(raw, 3):
        value = _one(packed, 2)
        match _text(packed, 1).rpartition("/")[2]:
            case "google.rpc.ErrorInfo":
                reason, domain = _text(value, 1), _text(value, 2)
                metadata = {_text(entry, 1): _text(entry, 2) for entry in _all(value, 3)}
            case "google.rpc.BadRequest":
                violations += [
                    Violation(field=_text(item, 1), description=_text(item, 2), reason=_text(item, 3))
                    for item in _all(value, 1)
                ]
            case "google.rpc.RetryInfo":
                retry_delay = duration_pb2.Duration.FromString(_one(value, 1)).ToTimedelta()
            case _:
                pass
    return ErrorDetails(
        reason=reason, domain=domain, metadata=metadata, violations=tuple(violations), retry_delay=retry_delay
    )


def _all(data: bytes, number: int) -> list[bytes]:
    return [value for field, value in _fields(data) if field == number]


def _one(data: bytes, number: int) -> bytes:
    values = _all(data, number)
    return values[-1] if values else b""


def _text(data: bytes, number: int) -> str:
    return _one(data, number).decode("utf-8", "replace")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message in wire format; skip the others.

    Raises `ValueError` if the data is cut short or is no such format.
    """
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        match key & 7:
            case 0:
                _, position = _varint(data, position)
            case 1:
                position += 8
            case 2:
                length, position = _varint(data, position)
                if position + length > len(data):
                    raise ValueError("field is cut short")
                yield key >> 3, data[position : position + length]
                position += length
            case 5:
                position += 4
            case kind:
                raise ValueError(f"wire type {kind} is not supported")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            raise ValueError("number is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("number is longer than 64 bits")
