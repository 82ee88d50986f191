"""Errors of the edge, and how every error becomes a gRPC status.

ApiError
├── InvalidRequest    INVALID_ARGUMENT     values were refused; names each with its field
├── Unauthenticated   UNAUTHENTICATED      nobody knows who calls
├── Forbidden         PERMISSION_DENIED    the caller is known and has no right to do that
├── NotFound          NOT_FOUND
├── AlreadyExists     ALREADY_EXISTS
├── WrongState        FAILED_PRECONDITION  the resource is in a state that does not allow the call
├── Aborted           ABORTED              it was changed by someone else meanwhile
├── Exhausted         RESOURCE_EXHAUSTED   a limit or a full queue
│   └── QuotaExceeded                      a quota of the namespace; carries QuotaFailure as well
├── OutcomeUnknown    UNAVAILABLE          a submit whose commit may or may not have happened
├── NodeStopping      UNAVAILABLE          a call that was under way when the node stopped
├── NotLeading        UNAVAILABLE          an order that only the leader can carry out, and there is none, or it is away
└── Relayed                                the answer of another node, passed on as it is

Errors of the domain, the engine and the store are mapped here as well; anything else is INTERNAL with an incident id,
under which the log has the traceback. Every status carries google.rpc.ErrorInfo with domain "shardwheel";
INVALID_ARGUMENT also BadRequest, UNAVAILABLE and RESOURCE_EXHAUSTED also RetryInfo. The reasons are part of the API.
"""

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final, TypeAlias

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from server.domain.errors import InvalidInput
from server.engine import ports
from server.store.catalog import CatalogFull, NamespaceConflict, UnknownHandler, UnknownNamespace
from server.store.errors import Unavailable, UnknownOutcome

log = logging.getLogger(__name__)

DOMAIN: Final = "shardwheel"
RETRY_DELAY: Final = timedelta(seconds=1)

# A status travels in the trailers, for which clients by default accept 8 KiB. There the message may triple in size
# (percent encoding), and details grow by a third (base64).
MAX_TEXT_BYTES: Final = 500
MAX_DETAIL_BYTES: Final = 4096

Metadata: TypeAlias = Mapping[str, str]


class ApiError(Exception):
    """An error with its status. `reason` is the machine-readable one, `metadata` are values that belong to it."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self, reason: str, message: str, metadata: Metadata | None = None, *, retry_after: timedelta | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class InvalidRequest(ApiError):
    """Values of a request were refused; `violations` has one error for each."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(
        self, violations: Sequence[InvalidInput], reason: str = "INVALID_VALUE", metadata: Metadata | None = None
    ) -> None:
        first = str(violations[0])
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        super().__init__(reason, _cut(first, MAX_TEXT_BYTES - len(more)) + more, metadata)
        self.violations = tuple(violations)


class Unauthenticated(ApiError):
    """Nobody knows who calls."""

    code = grpc.StatusCode.UNAUTHENTICATED


class Forbidden(ApiError):
    """The caller is known, and has no right to do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


class NotFound(ApiError):
    """There is no such thing."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(ApiError):
    """The name is taken."""

    code = grpc.StatusCode.ALREADY_EXISTS


class WrongState(ApiError):
    """The resource is in a state that does not allow the call."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(ApiError):
    """The resource was changed by someone else meanwhile."""

    code = grpc.StatusCode.ABORTED


class Exhausted(ApiError):
    """A limit is reached, or a queue is full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(
        self, reason: str, message: str, metadata: Metadata | None = None, *, retry_after: timedelta = RETRY_DELAY
    ) -> None:
        super().__init__(reason, message, metadata, retry_after=retry_after)


class QuotaExceeded(Exhausted):
    """A namespace has used up one of its quotas. Nothing was stored."""

    def __init__(self, namespace: str, quota: str, limit: str, *, retry_after: timedelta) -> None:
        self.subject = f"namespace:{namespace}"
        self.description = f"namespace {namespace!r} may have {limit}; try again later, or have {quota} raised"
        metadata = {"namespace": namespace, "quota": quota}
        super().__init__("QUOTA_EXCEEDED", self.description, metadata, retry_after=retry_after)


class OutcomeUnknown(ApiError):
    """The commit of a submit may or may not have happened."""

    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self, *, repeat_is_safe: bool) -> None:
        advice = (
            "it is safe to repeat the call"
            if repeat_is_safe
            else "a repeated call may store the job twice; with a dedupe_key it would be safe"
        )
        super().__init__(
            "OUTCOME_UNKNOWN",
            f"the connection to the database broke during the commit, the job may be stored or not: {advice}",
            {"repeat_is_safe": str(repeat_is_safe).lower()},
            retry_after=RETRY_DELAY,
        )


class NodeStopping(ApiError):
    """The node stops while it works on a call."""

    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__(
            "NODE_STOPPING",
            "the node stops; what was asked for may have been done or not: ask another node",
            retry_after=RETRY_DELAY,
        )


class NotLeading(ApiError):
    """An order cannot be carried out here or anywhere at this moment; `reason` is NOT_LEADER, NO_LEADER,
    LEADER_UNREACHABLE or COORDINATOR_UNAVAILABLE. Orders may be repeated."""

    code = grpc.StatusCode.UNAVAILABLE

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message, {"repeat_is_safe": "true"}, retry_after=RETRY_DELAY)


class Relayed(Exception):
    """The answer of another node, to be passed on as it is."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


def api_error(error: Exception) -> ApiError | None:
    """Return an error of the domain, the engine or the store as one of the edge, None if it was not foreseen."""
    match error:
        case ApiError():
            return error
        case InvalidInput():
            return InvalidRequest([error])
        case UnknownNamespace():
            advice = (
                "create it first (shardctl namespaces create), or leave the field empty for the namespace 'default'"
            )
            return NotFound("NAMESPACE_NOT_FOUND", f"{error}: {advice}", {"namespace": error.name})
        case UnknownHandler():
            advice = "a handler is known once a worker has registered it or a job was submitted for it"
            metadata = {"namespace": error.namespace, "handler": error.name}
            return NotFound("HANDLER_NOT_FOUND", f"{error}: {advice}", metadata)
        case NamespaceConflict():
            return AlreadyExists("NAMESPACE_EXISTS", str(error), {"namespace": error.name})
        case CatalogFull():
            return Exhausted("LIMIT_REACHED", str(error), {"limit": str(error.limit)}, retry_after=timedelta(hours=1))
        case Unavailable() | ports.StoreUnavailable():
            return _unavailable("DATABASE_UNAVAILABLE", f"nothing was changed, try again: {error}")
        case UnknownOutcome() | ports.OutcomeUnknown():
            return _unavailable(
                "OUTCOME_UNKNOWN", f"it is safe to repeat the call: {error}", {"repeat_is_safe": "true"}
            )
        case _:
            return None


class _Away(ApiError):
    code = grpc.StatusCode.UNAVAILABLE


def _unavailable(reason: str, message: str, metadata: Metadata | None = None) -> ApiError:
    return _Away(reason, message, metadata, retry_after=RETRY_DELAY)


class _Internal(ApiError):
    code = grpc.StatusCode.INTERNAL


def internal_error(error: Exception, method: str) -> ApiError:
    """Log an error that was not foreseen, and return the one that answers a call of `method`."""
    incident = secrets.token_hex(6)
    log.error("request failed", exc_info=error, extra={"incident": incident, "method": method})
    message = f"internal error; the log of the node has the details under incident {incident}"
    return _Internal("INTERNAL", message, {"incident": incident})


def status_of(error: Exception, method: str) -> grpc.Status:
    """Return the status that answers a call of `method` which raised `error`; what was not foreseen is logged."""
    if isinstance(error, Relayed):
        return rpc_status.to_status(error.status)
    known = api_error(error) or internal_error(error, method)
    return rpc_status.to_status(
        status_pb2.Status(
            code=code_pb2.Code.Value(known.code.name),
            message=_cut(known.message),
            details=list(_packed(_details(known))),
        )
    )


def _details(error: ApiError) -> Iterable[Message]:
    yield error_details_pb2.ErrorInfo(
        reason=error.reason, domain=DOMAIN, metadata={key: _cut(value) for key, value in error.metadata.items()}
    )
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(error.retry_after)
        yield retry
    if isinstance(error, QuotaExceeded):
        violation = error_details_pb2.QuotaFailure.Violation(subject=error.subject, description=_cut(error.description))
        yield error_details_pb2.QuotaFailure(violations=[violation])
    if isinstance(error, InvalidRequest):
        yield _bad_request(error)


def _bad_request(error: InvalidRequest) -> Message:
    """Name as many violations as fit, in their order."""
    violations: list[object] = []
    left = MAX_DETAIL_BYTES
    for violation in error.violations:
        name = _cut(violation.field)
        description = _cut(f"{violation.reason} (got {violation.value!r})")
        left -= len(name.encode()) + len(description.encode()) + 16
        if left < 0 and violations:
            break
        violations.append(
            error_details_pb2.BadRequest.FieldViolation(field=name, description=description, reason=error.reason)
        )
    bad_request: Message = error_details_pb2.BadRequest(field_violations=violations)
    return bad_request


def _packed(details: Iterable[Message]) -> Iterable[any_pb2.Any]:
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        yield packed


def _cut(text: str, limit: int = MAX_TEXT_BYTES) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"
