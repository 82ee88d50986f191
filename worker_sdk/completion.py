"""Completes a job inside the handler's own PostgreSQL transaction."""

from collections.abc import Awaitable, Sequence
from typing import Final, LiteralString, Protocol, TypeVar, runtime_checkable

# The function raises if the attempt is no longer open, which fails the transaction it is called in.
_BY_PERCENT: Final = "SELECT shardwheel.complete_attempt(%s::bigint, %s::bigint, %s::bytea, %s::text)"
_BY_NUMBER: Final = "SELECT shardwheel.complete_attempt($1::bigint, $2::bigint, $3::bytea, $4::text)"


Answer_co = TypeVar("Answer_co", covariant=True)


class Executor(Protocol[Answer_co]):
    """A connection or cursor of psycopg, sync or asyncio, a connection of asyncpg, or something like them."""

    def execute(self, query: LiteralString, params: Sequence[object], /) -> Answer_co:
        """Run a statement, or begin to: an asyncio driver answers with something to be awaited."""
        ...


@runtime_checkable
class _Numbered(Protocol):
    """A connection of asyncpg: known by a method that psycopg's connections do not have."""

    def execute(self, query: str, /, *args: object) -> Awaitable[object]: ...

    def fetchval(self, query: str, /, *args: object) -> Awaitable[object]: ...


def start_completion(connection: Executor[object], job_id: int, claim: int, result: bytes, content_type: str) -> object:
    """Run the statement, or begin to: what an asyncio driver returns has to be awaited."""
    if isinstance(connection, _Numbered):
        return connection.execute(_BY_NUMBER, job_id, claim, result, content_type)
    return connection.execute(_BY_PERCENT, (job_id, claim, result, content_type))
