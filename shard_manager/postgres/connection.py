"""One lazily opened PostgreSQL connection with a deadline on every use.

psycopg answers a cancelled query by asking the server to cancel it and waiting for up to ten seconds. A coordinator
call must end at its deadline even if the server hangs, so the deadline cuts the socket instead: the pending call fails
at once, the connection is thrown away, and the next call opens a new one. What the server still does with the statement
is unknown then, as it is after any network failure.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import psycopg
from psycopg import conninfo as psycopg_conninfo
from psycopg.rows import TupleRow

from shard_manager.errors import CoordinatorFailed, CoordinatorUnavailable

T = TypeVar("T")
AsyncConnection = psycopg.AsyncConnection[TupleRow]

# Give up on a dead peer before the deadlines do; whoever sets these in the connection string wins.
_DEFAULTS: Final[Mapping[str, str]] = {
    "connect_timeout": "3",
    "tcp_user_timeout": "5000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
}
_CLEANUP_S: Final = 1.0


class Connection:
    """One connection, one call at a time. `deadline_s` bounds each call, waiting and connecting included."""

    def __init__(self, conninfo: str, *, deadline_s: float, application_name: str) -> None:
        given = psycopg_conninfo.conninfo_to_dict(conninfo)
        defaults = {"application_name": application_name, **_DEFAULTS}
        self._conninfo = psycopg_conninfo.make_conninfo(
            conninfo, **{name: value for name, value in defaults.items() if name not in given}
        )
        self._deadline_s = deadline_s
        self._busy = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._closed = False

    async def call(self, operation: str, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run `work` on the connection (autocommit). Raises `CoordinatorUnavailable` or `CoordinatorFailed`."""
        try:
            async with asyncio.timeout(self._deadline_s):
                async with self._busy:
                    return await self._attempt(work)
        except TimeoutError as error:
            raise CoordinatorUnavailable(operation, f"no answer within {self._deadline_s:g} s") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise CoordinatorUnavailable(operation, _text(error)) from error
        except psycopg.Error as error:
            raise CoordinatorFailed(operation, _text(error)) from error

    async def close(self) -> None:
        """Close for good; a call in progress fails."""
        self._closed = True
        if self._connection is not None:
            _cut(self._connection)
        async with self._busy:
            await self._discard()

    async def _attempt(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        connection = await self._open()
        task = asyncio.ensure_future(work(connection))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            _cut(connection)
            await asyncio.wait({task}, timeout=_CLEANUP_S)
            if not task.cancel() and not task.cancelled():
                task.exception()  # known: the socket was cut
            await self._discard()
            raise
        except psycopg.Error as error:
            # The server's answer to a statement leaves an autocommit connection usable; anything else does not.
            if error.sqlstate is None or connection.broken or connection.closed:
                await self._discard()
            raise

    async def _open(self) -> AsyncConnection:
        if self._closed:
            raise psycopg.OperationalError("the coordinator is closed")
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            await self._discard()
        if self._connection is None:
            # No prepared statements: they do not survive a pooler in transaction mode.
            self._connection = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True, prepare_threshold=None
            )
        return self._connection

    async def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _cut(connection: AsyncConnection) -> None:
    """Shut the socket down under the connection: whoever reads from it sees its end."""
    if connection.closed:
        return
    try:
        handle = socket.socket(fileno=os.dup(connection.fileno()))
    except (OSError, psycopg.OperationalError):
        return
    with handle:
        try:
            handle.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already shut


def _text(error: psycopg.Error) -> str:
    state = f" ({error.sqlstate})" if error.sqlstate else ""
    return (str(error).strip() or type(error).__name__) + state
