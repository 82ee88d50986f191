"""Words for a failed call: what went wrong and what to do next."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from shard_manager.shardctl.failure import CommandFailedError, RefusedInputError
from shard_manager.shardctl.settings import Settings
from shard_manager.shardctl.text import printable
from shard_manager.shardctl.times import format_duration

Detail = TypeVar("Detail", bound=Message)

_STATUS_KEY = "grpc-status-details-bin"
_OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
_NEVER_SENT = "failed to connect to all addresses"
# Errors that do not tell whether the call had its effect.
_SAY_NOTHING = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_LAST_ERROR = re.compile(r"last error: (?:UNKNOWN: )?(.*)", re.DOTALL)


class CallFailedError(CommandFailedError):
    """A call that the server, or the way to it, answered with an error other than refused input.

    `maybe_done` tells that the server may have done what it was asked to all the same.
    """

    def __init__(self, code: grpc.StatusCode, *lines: str, maybe_done: bool) -> None:
        super().__init__(*lines)
        self.code = code
        self.maybe_done = maybe_done


class CallRefusedError(RefusedInputError):
    """INVALID_ARGUMENT: `violations` are the refused fields, each with its reason; empty if the server named none."""

    def __init__(self, message: str, violations: tuple[tuple[str, str], ...]) -> None:
        lines = [f"error: {printable(field)}: {printable(reason)}" for field, reason in violations]
        super().__init__(*(lines or [f"error: refused: {message}"]))
        self.violations = violations


def failure_of(error: grpc.aio.AioRpcError, settings: Settings, limit: timedelta) -> CommandFailedError:
    """The failure that ends the command for this error of a call with the time limit `limit`."""
    status = _status(error)
    message = printable(error.details() or "") or error.code().name
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        violations = tuple(
            (violation.field, violation.description)
            for bad_request in _details(status, BadRequest)
            for violation in bad_request.field_violations
        )
        return CallRefusedError(message, violations)
    lines = _lines(error.code(), message, status, settings, limit)
    return CallFailedError(error.code(), *lines, maybe_done=_maybe_done(error.code(), message, status))


def _maybe_done(code: grpc.StatusCode, message: str, status: Status) -> bool:
    """Whether the call may have had its effect, though it failed."""
    if code is grpc.StatusCode.UNAVAILABLE:
        reasons = [info.reason for info in _details(status, ErrorInfo)]
        return _OUTCOME_UNKNOWN in reasons if reasons else not message.startswith(_NEVER_SENT)
    return code in _SAY_NOTHING


def _lines(code: grpc.StatusCode, message: str, status: Status, settings: Settings, limit: timedelta) -> Iterator[str]:
    from_server = any(_details(status, ErrorInfo))
    match code:
        case grpc.StatusCode.UNAVAILABLE if not from_server:
            reason = match[1] if (match := _LAST_ERROR.search(message)) else message
            yield f"error: cannot reach a server at {settings.address}: {reason}"
            yield "Start one with `shardwheel dev`, or name another with --address or SHARDWHEEL_ADDRESS."
            if settings.tls is None and not any(word in reason.lower() for word in ("refused", "resol")):
                yield "If it listens with TLS, give its CA with --ca."
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            yield f"error: {settings.address} gave no answer within {format_duration(limit)}"
            yield "Look at `shardctl status`, or allow more time with --timeout."
        case grpc.StatusCode.UNAUTHENTICATED:
            yield f"error: not authenticated: {message}"
            yield "Give a token with --token or SHARDWHEEL_TOKEN, or its file with --token-file."
        case grpc.StatusCode.PERMISSION_DENIED:
            yield f"error: not allowed: {message}"
            yield f"Asked for in namespace {settings.namespace!r}; --namespace names another, --token another token."
        case grpc.StatusCode.NOT_FOUND:
            yield f"error: not found: {message}"
            if not _of_cluster(status) and settings.namespace not in message:
                yield f"Looked in namespace {settings.namespace!r}; --namespace names another."
        case grpc.StatusCode.ABORTED:
            yield f"error: changed by someone else meanwhile: {message}"
            yield "Nothing was changed; look at it again and repeat."
        case grpc.StatusCode.UNIMPLEMENTED:
            yield f"error: the server at {settings.address} does not know this call: {message}"
            yield "It may be older than this shardctl; `shardctl status` shows its version."
        case _:
            yield f"error: {message} ({code.name})"
    unsafe = any(info.metadata.get("repeat_is_safe") == "false" for info in _details(status, ErrorInfo))
    for retry in _details(status, RetryInfo) if not unsafe else ():
        yield f"Try again in {format_duration(retry.retry_delay.ToTimedelta())}."


def _of_cluster(status: Status) -> bool:
    """Whether what was not found belongs to the cluster as a whole, not to a namespace."""
    return any(info.reason in ("NODE_NOT_FOUND", "PROCESS_GONE") for info in _details(status, ErrorInfo))


def _status(error: grpc.aio.AioRpcError) -> Status:
    """google.rpc.Status of the trailing metadata; empty if there is none or it cannot be read."""
    for key, value in error.trailing_metadata():
        if key == _STATUS_KEY and isinstance(value, bytes):
            try:
                return Status.FromString(value)
            except DecodeError:
                break
    return Status()


def _details(status: Status, kind: type[Detail]) -> Iterator[Detail]:
    for packed in status.details:
        detail = kind()
        if packed.Is(kind.DESCRIPTOR) and packed.Unpack(detail):
            yield detail
