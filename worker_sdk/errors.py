"""Every error that the package raises.

::

    ShardwheelError
    ├── ApiError                 a node answered with an error, or could not be reached
    │   ├── InvalidArgument      a value was refused; `violations` names the fields
    │   ├── NotFound
    │   ├── AlreadyExists
    │   ├── FailedPrecondition   the resource is in the wrong state
    │   ├── Aborted              it was changed by someone else meanwhile (etag)
    │   ├── ResourceExhausted    a quota or limit; `retry_delay` may say when to come back
    │   ├── Unavailable          no node answers, or it cannot reach its database
    │   ├── DeadlineExceeded     no answer in time (also a TimeoutError)
    │   ├── Unauthenticated
    │   ├── PermissionDenied
    │   ├── Unimplemented        the node does not know the method: other version, or not a node
    │   └── ServerError          everything else
    ├── BulkSubmitError          a bulk submit broke off; says how many jobs are stored
    ├── PayloadError             a payload, result or progress cannot be encoded or decoded (also a ValueError)
    └── ConfigurationError       a setting or a definition is wrong (also a ValueError)

What a handler raises to end its attempt in a particular way (`Snooze`, `RetryAfter`, `NonRetryable`) is not an error of
the package and lives in `worker_sdk.outcomes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta


class ShardwheelError(Exception):
    """Base of every error that the package raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One refused field of a request."""

    field: str
    """Path of the field, for example "job.priority"."""
    description: str
    """What is wrong with it and what to do."""
    reason: str = ""
    """Machine-readable reason, empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetails:
    """What a node said about an error beside its text."""

    reason: str = ""
    """Machine-readable reason, for example "JOB_NOT_FOUND"; empty if the node gave none."""
    domain: str = ""
    """Who defined the reason; "shardwheel" for ours."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Values that belong to the reason."""
    violations: tuple[Violation, ...] = ()
    """Refused fields."""
    retry_delay: timedelta | None = None
    """How long to wait before trying again, if the node said so."""


class ApiError(ShardwheelError):
    """A call failed. `message` is the node's text, `code` the name of the gRPC status."""

    def __init__(self, message: str, *, code: str = "", details: ErrorDetails | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details or ErrorDetails()

    @property
    def reason(self) -> str:
        """Machine-readable reason, empty if the node gave none."""
        return self.details.reason

    @property
    def metadata(self) -> Mapping[str, str]:
        """Values that belong to the reason."""
        return self.details.metadata

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Refused fields of the request."""
        return self.details.violations

    @property
    def retry_delay(self) -> timedelta | None:
        """How long to wait before trying again, if the node said so."""
        return self.details.retry_delay

    def __str__(self) -> str:
        """Return the text, with the refused fields that it does not mention itself."""
        extra = [
            f"{item.field}: {item.description}" for item in self.violations if item.description not in self.message
        ]
        return "; ".join([self.message or self.code, *extra])


class InvalidArgument(ApiError):
    """A value of the request was refused; sending it again cannot help."""


class NotFound(ApiError):
    """There is no such thing."""


class AlreadyExists(ApiError):
    """The name is taken by something else."""


class FailedPrecondition(ApiError):
    """The resource is in a state that does not allow this."""


class Aborted(ApiError):
    """The resource was changed by someone else meanwhile; read it again and decide anew."""


class ResourceExhausted(ApiError):
    """A quota or limit was reached."""


class Unavailable(ApiError):
    """No node answers, or the node cannot reach what it needs."""


class DeadlineExceeded(ApiError, TimeoutError):
    """There was no answer in time. The call may have taken effect."""


class Unauthenticated(ApiError):
    """The token is missing, unknown or expired."""


class PermissionDenied(ApiError):
    """The token does not allow this."""


class Unimplemented(ApiError):
    """The node does not know the method: it has another version, or the address is not a node's."""


class ServerError(ApiError):
    """The node failed in a way that it did not foresee."""


class BulkSubmitError(ShardwheelError):
    """A bulk submit broke off; `__cause__` is the error that ended it.

    Jobs are sent in their order, so the first `stored` jobs of the input are stored for certain, the next `in_doubt`
    may be, and the others are not.
    """

    def __init__(self, *, stored: int, in_doubt: int, cause: BaseException) -> None:
        super().__init__(f"bulk submit broke off: {stored} jobs are stored, the next {in_doubt} may be; {cause}")
        self.stored = stored
        self.in_doubt = in_doubt
        self.__cause__ = cause


class PayloadError(ShardwheelError, ValueError):
    """A payload, a result or progress data cannot be encoded or decoded; the text names the field."""


class ConfigurationError(ShardwheelError, ValueError):
    """A setting, a handler or a schedule is defined in a way that cannot work; the text names the remedy."""
