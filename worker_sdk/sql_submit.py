"""Submits a job inside the caller's own PostgreSQL transaction."""

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from datetime import UTC
from typing import Final, Protocol, cast, runtime_checkable

from google.protobuf.message import Message

from shardwheel.v1.job_pb2 import JobSpec
from worker_sdk.errors import ConfigurationError
from worker_sdk.jobs import Submitted
from worker_sdk.json_text import dump_json

_TYPES: Final[Mapping[str, str]] = {
    "handler": "text",
    "payload": "bytea",
    "content_type": "text",
    "namespace": "text",
    "name": "text",
    "priority": "integer",
    "due_at": "timestamptz",
    "delay": "interval",
    "dedupe_key": "text",
    "dedupe_ttl": "interval",
    "concurrency_key": "text",
    "concurrency_limit": "integer",
    "labels": "jsonb",
    "max_attempts": "integer",
    "initial_delay": "interval",
    "multiplier": "float8",
    "max_delay": "interval",
    "non_retryable_error_types": "text[]",
    "start_timeout": "interval",
    "attempt_timeout": "interval",
    "total_timeout": "interval",
    "traceparent": "text",
}
_SELECT: Final = "SELECT job_id, created, differs FROM shardwheel.submit_bytes({})"
_BY_PERCENT: Final = _SELECT.format(", ".join(f"{name} => %s::{kind}" for name, kind in _TYPES.items()))
_BY_NUMBER: Final = _SELECT.format(
    ", ".join(f"{name} => ${number}::{kind}" for number, (name, kind) in enumerate(_TYPES.items(), 1))
)


class Cursor(Protocol):
    """Something that has a row to give."""

    def fetchone(self) -> object:
        """Return the row, or something to be awaited."""
        ...


class SqlConnection(Protocol):
    """A connection or cursor of psycopg, or a cursor of Django."""

    def execute(self, query: str, params: Sequence[object], /) -> object:
        """Run a statement."""
        ...


@runtime_checkable
class AsyncpgConnection(Protocol):
    """A connection of asyncpg: known by a method that psycopg's connections do not have."""

    def fetchrow(self, query: str, /, *args: object) -> Awaitable[Sequence[object]]:
        """Run a statement and return its first row."""
        ...


def submit_in(connection: SqlConnection, spec: JobSpec, namespace: str) -> Submitted:
    """Store a job in the transaction that is open on a connection, or on the connection of a cursor."""
    answer = connection.execute(_BY_PERCENT, _params(spec, namespace))
    if isinstance(answer, Awaitable):
        if isinstance(answer, Coroutine):
            answer.close()
        raise ConfigurationError("connection: is one of asyncio; use AsyncClient, and await its submit_in")
    # A cursor of Django gives nothing back: it has the row itself.
    return _submitted(cast("Cursor", connection if answer is None else answer).fetchone())


async def submit_in_async(connection: SqlConnection | AsyncpgConnection, spec: JobSpec, namespace: str) -> Submitted:
    """Do the same on a connection of asyncio."""
    params = _params(spec, namespace)
    if isinstance(connection, AsyncpgConnection):
        return _submitted(await connection.fetchrow(_BY_NUMBER, *params))
    answer = connection.execute(_BY_PERCENT, params)
    if not isinstance(answer, Awaitable):
        raise ConfigurationError("connection: is not one of asyncio; use Client for it")
    cursor: Cursor = await answer
    return _submitted(await cast("Awaitable[object]", cursor.fetchone()))


def _submitted(row: object) -> Submitted:
    job_id, created, differs = cast("tuple[int, bool, bool]", tuple(cast("Sequence[object]", row)))
    return Submitted(job_id=job_id, created=created, differs=differs)


def _params(spec: JobSpec, namespace: str) -> list[object]:
    """Return the arguments in the order of `_TYPES`; what the message leaves open is null."""
    retry, timeouts = spec.retry, spec.timeouts
    values: dict[str, object] = {
        name: getattr(spec, name)
        for name in ("handler", "payload", "content_type", "name", "priority", "dedupe_key", "concurrency_key",
                     "concurrency_limit", "traceparent")
    }  # fmt: skip
    values |= {
        "namespace": namespace,
        "due_at": spec.due_at.ToDatetime(tzinfo=UTC) if spec.HasField("due_at") else None,
        "labels": dump_json(dict(spec.labels)).decode() if spec.labels else None,
        "max_attempts": retry.max_attempts,
        "multiplier": retry.multiplier,
        "non_retryable_error_types": list(retry.non_retryable_error_types),
    }
    parts: tuple[tuple[Message, tuple[str, ...]], ...] = (
        (spec, ("delay", "dedupe_ttl")),
        (retry, ("initial_delay", "max_delay")),
        (timeouts, ("start_timeout", "attempt_timeout", "total_timeout")),
    )
    for message, names in parts:
        for name in names:
            values[name] = getattr(message, name).ToTimedelta() if message.HasField(name) else None
    return [values[name] for name in _TYPES]
