"""Connections and the one way to run a statement.

Every statement has a deadline, and every failure comes out as one of the classes in `errors`. Statements are single and
autocommitted unless a caller opens a `transaction`.
"""

import asyncio
import logging
import re
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias, TypeVar
from weakref import WeakSet, ref

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import Diagnostic
from psycopg.rows import namedtuple_row, tuple_row
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from server.store import arrays
from server.store.errors import AccessDenied, Locked, Refused, StoreError, Unavailable, UnknownOutcome

log = logging.getLogger(__name__)

Row: TypeAlias = Any
Connection: TypeAlias = AsyncConnection[Any]
Pool: TypeAlias = "AsyncConnectionPool[AsyncConnection[Any]]"
Query: TypeAlias = bytes | LiteralString
T = TypeVar("T")

# Deadlock and serialization failure: surely rolled back, worth an immediate second try.
RETRIED_STATES = frozenset({"40P01", "40001"})
# The server went away or refuses work: administrator shutdown, crash, starting up, too many connections, disk full.
AWAY_STATES = frozenset({"57P01", "57P02", "57P03", "53300", "53100", "53200", "57014", "25006", "25P03"})
# The driver gives no SQLSTATE for a refused connection. What is not recognised, such as a text in another language, is
# taken for a database that is away.
_DENIED = re.compile(
    r"FATAL: .*(authentication failed|does not exist|no pg_hba\.conf entry|permission denied|not permitted to log in)"
    r"|no password supplied|certificate verify failed|does not match host name|root certificate file"
    r"|server does not support SSL|invalid (?:sslmode value|port number|integer value)"
)
LOCK_TIMEOUT = "55P03"
# Row routing found no partition: one for the day has to be made.
MISSING_PARTITION = "23514"


# So long after its deadline a statement may take to be cancelled, before its connection is closed.
CANCEL_S = 1.0


# Connections whose latest commit did not wait for the synchronous standby, although it was to.
_unreplicated: WeakSet[Connection] = WeakSet()


class Statement:
    """A statement with the number of a partition left open: `jobs_{p}` becomes `jobs_0003`.

    Naming the partition keeps planning and locking to one table, however many there are.
    """

    def __init__(self, template: LiteralString) -> None:
        self._template = template
        self._cache: dict[str, bytes] = {}

    def on(self, partition: int) -> bytes:
        """Return the statement for one partition."""
        return self._for(f"_{partition:04d}")

    def on_all(self) -> bytes:
        """Return the statement for rows of any partitions, through the parent tables."""
        return self._for("")

    def _for(self, suffix: str) -> bytes:
        found = self._cache.get(suffix)
        if found is None:
            found = (
                SQL(self._template)
                .format(
                    jobs=Identifier(f"jobs{suffix}"),
                    dedupe_keys=Identifier(f"dedupe_keys{suffix}"),
                    schedules=Identifier(f"schedules{suffix}"),
                )
                .as_bytes(None)
            )
            self._cache[suffix] = found
        return found


def classify(error: psycopg.Error, *, sent: bool) -> StoreError:
    """Turn a driver error into one of ours; `sent` says whether the statement may have reached the server."""
    state = error.sqlstate
    if state is not None:
        if state == LOCK_TIMEOUT:
            return Locked(str(error))
        if state in AWAY_STATES or state.startswith("08"):
            # A shutdown can arrive after the commit was written, and so can the loss of a connection behind a pooler.
            return UnknownOutcome(str(error)) if sent and state.startswith(("57P0", "08")) else Unavailable(str(error))
        return Refused(state, str(error).splitlines()[0])
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return UnknownOutcome(str(error)) if sent else Unavailable(str(error))
    return Refused("?????", str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """Connections of a pool, those in use, and statements that wait for one."""

    size: int
    in_use: int
    waiting: int


class Database:
    """Pools of connections to one PostgreSQL.

    `hot` serves the engine (claims, finishes, leases), `api` everything that people and clients ask for, so that a
    flood of requests cannot starve the engine.
    """

    def __init__(self, dsn: str, *, hot_connections: int = 8, api_connections: int = 6) -> None:
        self._dsn = dsn
        self._sizes = {"hot": hot_connections, "api": api_connections}
        self._make_pools()

    async def open(self, *, timeout: float = 10.0) -> None:
        """Open the pools; raises Unavailable if the database does not answer within `timeout` seconds.

        It may be tried again then.
        """
        pools = (self._hot, self._api)
        for pool in pools:
            await pool.open()
        ends = await asyncio.gather(*(pool.wait(timeout) for pool in pools), return_exceptions=True)
        failures = [end for end in ends if isinstance(end, BaseException)]
        if not failures:
            return
        # A pool that was waited for in vain is closed for good.
        await self.close()
        self._make_pools()
        if isinstance(failures[0], PoolTimeout):
            raise Unavailable(f"the database did not answer within {timeout:g} s: {failures[0]}") from failures[0]
        raise failures[0]

    def _make_pools(self) -> None:
        self._hot = _pool(self._dsn, "hot", self._sizes["hot"])
        self._api = _pool(self._dsn, "api", self._sizes["api"])

    def pools(self) -> dict[str, PoolLoad]:
        """Return the load of each pool by its name."""
        found = {}
        for pool in (self._hot, self._api):
            stats = pool.get_stats()
            size, idle = stats.get("pool_size", 0), stats.get("pool_available", 0)
            found[pool.name] = PoolLoad(size=size, in_use=size - idle, waiting=stats.get("requests_waiting", 0))
        return found

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(self._hot.close(5.0), self._api.close(5.0))

    async def run(
        self, query: Query, params: Sequence[object] = (), *, timeout: float = 6.0, api: bool = False
    ) -> list[Row]:
        """Run one autocommitted statement and return its rows as tuples.

        Deadlocks are tried again up to four times. Raises `NotApplied` or `UnknownOutcome`.
        """

        async def once(connection: Connection) -> list[Row]:
            cursor = connection.cursor(row_factory=tuple_row, binary=True)
            await cursor.execute(query, params)
            return await cursor.fetchall() if cursor.description else []

        return await self._with_connection(once, timeout=timeout, api=api)

    async def fetch(
        self, query: Query, params: Sequence[object] = (), *, timeout: float = 6.0, api: bool = True
    ) -> list[Row]:
        """Like `run`, with rows as named tuples: for reads off the hot path."""

        async def once(connection: Connection) -> list[Row]:
            cursor = connection.cursor(row_factory=namedtuple_row, binary=True)
            await cursor.execute(query, params)
            return await cursor.fetchall() if cursor.description else []

        return await self._with_connection(once, timeout=timeout, api=api)

    async def transact(
        self, work: Callable[[Connection], Awaitable[T]], *, timeout: float = 10.0, api: bool = True
    ) -> T:
        """Run `work` in one transaction; after a deadlock it is run again, so it must have no other effects."""

        async def once(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._with_connection(once, timeout=timeout, api=api)

    async def _with_connection(self, work: Callable[[Connection], Awaitable[T]], *, timeout: float, api: bool) -> T:
        pool = self._api if api else self._hot
        for tries_left in (3, 2, 1, 0):
            try:
                return await self._attempt(pool, work, timeout)
            except Refused as error:
                if error.sqlstate not in RETRIED_STATES or not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _attempt(self, pool: Pool, work: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        sent = False
        try:
            async with (
                # Cancelled once, the driver asks the server to cancel, and waits; cancelled again, it closes.
                asyncio.timeout(timeout + CANCEL_S),
                asyncio.timeout(timeout),
                _borrowed(pool, timeout) as connection,
            ):
                sent = True
                _unreplicated.discard(connection)
                answer = await work(connection)
                if connection in _unreplicated:
                    raise UnknownOutcome("committed, but somebody has cancelled the wait for the synchronous standby")
                return answer
        except PoolTimeout as error:
            raise Unavailable(f"no connection to the database within {timeout:g} s") from error
        except TimeoutError as error:
            if sent:
                raise UnknownOutcome(f"no answer from the database within {timeout:g} s") from error
            raise Unavailable(f"no connection to the database within {timeout:g} s") from error
        except psycopg.Error as error:
            raise classify(error, sent=sent) from error


def _pool(dsn: str, name: str, size: int) -> Pool:
    return AsyncConnectionPool(
        _writable(dsn),
        min_size=size,
        max_size=size,
        open=False,
        name=name,
        configure=_configure,
        timeout=5.0,
        # Within it, the pool doubles the pause after each failure, which would outlast a long outage by as much again.
        reconnect_timeout=1.0,
        reconnect_failed=_try_again,
        max_lifetime=3600.0,
        kwargs={
            "autocommit": True,
            "connect_timeout": 3,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 5000,
            "application_name": f"shardwheel-{name}",
        },
    )


def _writable(dsn: str) -> str:
    """Return the URI so that of several hosts the one is taken that can be written to, unless it says otherwise."""
    given = conninfo_to_dict(dsn)
    return dsn if "target_session_attrs" in given else make_conninfo(dsn, target_session_attrs="read-write")


async def _try_again(pool: Pool) -> None:
    """Let a pool that has given a connection up begin anew, for ever: about once a second while it has none."""
    await pool.check()


@asynccontextmanager
async def _borrowed(pool: Pool, timeout: float) -> AsyncIterator[Connection]:
    """A connection of the pool that the server has not ended, so that no statement is lost on one.

    After a restart of the server all idle ones are dead, and a node that asks seldom would else need as many failures
    to be rid of them. The pool's own check would pause after each, ever longer.
    """
    while True:
        async with pool.connection(timeout=timeout) as connection:
            if await _lives(connection):
                try:
                    yield connection
                except psycopg.errors.ReadOnlySqlTransaction:
                    # It leads to a standby, as after a failover: the next one may lead to the primary.
                    await connection.close()
                    raise
                return


async def _lives(connection: Connection) -> bool:
    """Whether the server has not ended an idle connection. Only one that has something to say is asked."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if not poll.poll(0):
        return True
    try:
        await connection.execute("")
    except psycopg.Error:
        await connection.close()
        return False
    return True


async def _configure(connection: Connection) -> None:
    arrays.register(connection)
    known = ref(connection)

    def noted(notice: Diagnostic) -> None:
        link = known()
        # PostgreSQL calls that a success, with a warning in whatever language.
        if notice.source_function == "SyncRepWaitForLSN" and link is not None:
            _unreplicated.add(link)

    connection.add_notice_handler(noted)
    connection.prepare_threshold = 2


@asynccontextmanager
async def single_connection(dsn: str, *, timeout: float = 10.0) -> AsyncIterator[Connection]:
    """One autocommitting connection outside the pools, for migrations and tools.

    Raises `Unavailable`, `AccessDenied` if a later try cannot go better either.
    """
    try:
        connection = await AsyncConnection.connect(
            _writable(dsn), autocommit=True, connect_timeout=max(2, int(timeout))
        )
    except psycopg.Error as error:
        # The URI itself is wrong if nobody was asked.
        denied = isinstance(error, psycopg.ProgrammingError) or _DENIED.search(str(error))
        kind = AccessDenied if denied else Unavailable
        raise kind(f"cannot connect to the database: {error}") from error
    arrays.register(connection)
    try:
        yield connection
    finally:
        await connection.close()
