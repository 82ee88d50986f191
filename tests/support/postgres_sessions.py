"""What other sessions can do to those of a node: end them, crash them, leave them no room, and stand in their way.

Functions block; from a coroutine, call them in a thread.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final, LiteralString

import psycopg
from psycopg import Connection

Session = Connection[tuple[object, ...]]

STRANGER: Final = "stranger"
"""Application name of the sessions that get in the way."""

_OTHERS: Final[LiteralString] = (
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' AND application_name <> 'stranger'"
    " AND (%(name)s::text IS NULL OR application_name LIKE %(name)s::text || '%%')"
)
_TERMINATE: Final[LiteralString] = "SELECT pg_terminate_backend(pid)" + _OTHERS
_LIST: Final[LiteralString] = "SELECT pid" + _OTHERS + " ORDER BY pid"
# More than any test's server admits.
_MOST_SESSIONS: Final = 1000


def terminate_sessions(dsn: str, application: str | None = None) -> int:
    """End all other sessions of the database, or those whose application name begins so; return how many."""
    with stranger(dsn) as session:
        return len(session.execute(_TERMINATE, {"name": application}).fetchall())


def list_sessions(dsn: str, application: str | None = None) -> list[int]:
    """Return the process ids of all other sessions of the database, or of those of an application."""
    with stranger(dsn) as session:
        return [int(str(row[0])) for row in session.execute(_LIST, {"name": application})]


def kill_session(dsn: str, choice: int, application: str | None = None) -> int | None:
    """Kill (-9) the process of one session, chosen by any number: PostgreSQL then ends all others, and recovers.

    Return its process id; None if there is no session.
    """
    pids = list_sessions(dsn, application)
    if not pids:
        return None
    pid = pids[choice % len(pids)]
    os.kill(pid, signal.SIGKILL)
    return pid


@contextlib.contextmanager
def stranger(dsn: str) -> Iterator[Session]:
    """A session that waits for nobody longer than 30 s, whatever its role is set to."""
    options = "-c lock_timeout=0 -c statement_timeout=30s -c idle_in_transaction_session_timeout=0"
    with psycopg.connect(dsn, connect_timeout=5, application_name=STRANGER, options=options) as session:
        session.autocommit = True
        yield session


@contextlib.contextmanager
def no_room(dsn: str) -> Iterator[int]:
    """Take every connection that the server admits, those of the nodes included; yield how many."""
    held: list[Session] = []
    with contextlib.ExitStack() as stack:
        with stranger(dsn) as session:
            _fill(dsn, stack, held)
            # Whoever is ended tries to come back at once: it takes some rounds until all places are ours.
            while session.execute(_TERMINATE, {"name": None}).fetchall():
                _fill(dsn, stack, held)
        _fill(dsn, stack, held)
        yield len(held)


def _fill(dsn: str, stack: contextlib.ExitStack, held: list[Session]) -> None:
    for _ in range(_MOST_SESSIONS):
        try:
            held.append(stack.enter_context(psycopg.connect(dsn, connect_timeout=5, application_name=STRANGER)))
        except psycopg.OperationalError as error:
            if "too many clients" in str(error) or "remaining connection slots" in str(error):
                return
            raise


@contextlib.contextmanager
def locked(dsn: str, statement: LiteralString) -> Iterator[None]:
    """Hold what `statement` locks in a transaction of a foreign session."""
    with stranger(dsn) as session, session.transaction(force_rollback=True):
        session.execute(statement)
        yield
