"""One kazoo client for one ZooKeeper session, spoken to from one event loop. The only file that knows kazoo.

kazoo is used as a client and nothing else. It runs three threads; calls go in through its asynchronous functions, and
answers, events of watches and changes of state come back by `call_soon_threadsafe`. What is known to go wrong is kept
from happening here: retries and connects take a second at most (its defaults reach an hour and the whole session),
nothing is asked while there is no connection (it would be queued and neither fail nor run), a client that has lost its
session makes no second one, and stopping it never waits for a server that hangs.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import make_acl, make_digest_acl

from shard_manager.zookeeper.messages import (
    Check,
    Create,
    Delete,
    LinkDown,
    LinkLost,
    LinkRefused,
    LinkState,
    Operation,
    Reason,
    Refused,
    SetData,
    Stat,
)
from shard_manager.zookeeper.settings import ZookeeperSettings

logger = logging.getLogger(__name__)

# kazoo warns of every attempt to connect, once a second and server while one is away; changes of state are told here.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

_RETRY_DELAY_S: Final = 0.1
_RETRY_MAX_DELAY_S: Final = 1.0
_CONNECT_MIN_S: Final = 0.5
_CONNECT_MAX_S: Final = 2.0
_CUT_S: Final = 3.0


class Link:
    """`open` it once, `close` it once. `changed` is called in the event loop after every event; it must not block."""

    def __init__(self, settings: ZookeeperSettings, *, ttl_s: float, changed: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._state = LinkState.CONNECTING
        self._connected = asyncio.Event()
        self._cut = threading.Event()
        self._lost = threading.Event()
        self._denied = False
        self._stop_lock = threading.Lock()
        self._stopping: threading.Thread | None = None
        self._stopped = asyncio.Event()
        self._trouble = "its name cannot be resolved"
        self._suspended_s: float | None = None
        self._connect_s = min(max(_CONNECT_MIN_S, ttl_s / (2 * len(settings.hosts))), _CONNECT_MAX_S)
        self._socket: socket.socket | None = None
        self._hosts = ",".join(settings.hosts)
        self._client = self._new_client(settings, ttl_s)
        self.session: tuple[int, bytes] | None = None
        """Number and password of the session, known after `open`."""

    def _new_client(self, settings: ZookeeperSettings, ttl_s: float) -> Any:
        handler = SequentialThreadingHandler()
        self._create_connection = handler.create_connection
        handler.create_connection = self._connect
        acl = [make_acl(*identity.split(":", 1), all=True) for identity in settings.acl]
        if settings.auth and not acl:
            acl = [make_digest_acl(*settings.auth.split(":", 1), all=True)]
        # Servers that come back give their sessions one more length: a short one leaves little time to notice.
        max_delay_s = min(_RETRY_MAX_DELAY_S, ttl_s / 10)
        client = KazooClient(
            hosts=self._hosts,
            timeout=ttl_s,
            handler=handler,
            default_acl=acl or None,
            auth_data={("digest", settings.auth)} if settings.auth else None,
            connection_retry=KazooRetry(max_tries=-1, delay=_RETRY_DELAY_S, max_delay=max_delay_s),
            command_retry=KazooRetry(max_tries=0, delay=_RETRY_DELAY_S, max_delay=max_delay_s),
            logger=_kazoo_logger,
            use_ssl=settings.use_ssl,
            ca=settings.ca or None,
            certfile=settings.certfile or None,
            keyfile=settings.keyfile or None,
            verify_certs=settings.use_ssl,
            check_hostname=settings.use_ssl,
        )
        client.add_listener(self._listen)
        return client

    # The session.

    @property
    def state(self) -> LinkState:
        """What is known at this moment, also of what the event loop has not been told yet."""
        return LinkState.LOST if self._lost.is_set() else self._state

    @property
    def suspended_for_s(self) -> float:
        """Seconds without a connection, 0 with one."""
        return 0.0 if self._suspended_s is None else self._loop.time() - self._suspended_s

    async def open(self) -> None:
        """Connect and begin a session. Raises `LinkRefused`; waits until the caller's deadline if nobody answers."""
        self._client.start_async()
        await self._connected.wait()
        self._check()
        self.session = self._client.client_id
        if self.session is None:
            raise LinkDown(f"connection to {self._hosts} lost")

    @property
    def trouble(self) -> str:
        """What the last attempt to connect ended with."""
        return f"{self._hosts}: {self._trouble}"

    def give_up(self) -> None:
        """Regard the session as over. May be called from any thread."""
        self._lost.set()
        self._in_loop(self._noted, LinkState.LOST)

    def end_in_background(self, grace_s: float) -> None:
        """End the session and the connection; after `grace_s` without an answer cut it. May be called from any thread.

        Without any grace the session is left to expire.
        """
        self._lost.set()
        with self._stop_lock:
            if self._stopping is None:
                self._stopping = threading.Thread(
                    target=self._stop, args=(grace_s,), name="zookeeper-stop", daemon=True
                )
                self._stopping.start()
                return
        if grace_s <= 0:
            self._cut_connection()

    async def ended(self) -> None:
        """Wait until the connection and its threads are gone, a few seconds at most."""
        try:
            async with asyncio.timeout(_CUT_S):
                await self._stopped.wait()
        except TimeoutError:
            logger.warning("client did not stop in time", extra={"servers": self._hosts})

    # Reads and writes.

    async def get(self, path: str, *, watch: bool = False) -> tuple[bytes, Stat] | None:
        """Data and stat of a znode, None if there is none. A watch wakes the caller at the next change, once."""
        try:
            data, stat = await self._call(lambda: self._client.get_async(path, watch=self._watch(watch)))
        except kazoo_errors.NoNodeError:
            return None
        return bytes(data), _stat(stat)

    async def stat(self, path: str, *, watch: bool = False) -> Stat | None:
        """The stat of a znode, None if there is none; a watch then waits for its creation."""
        found = await self._call(lambda: self._client.exists_async(path, watch=self._watch(watch)))
        return None if found is None else _stat(found)

    async def stats(self, paths: Sequence[str]) -> list[Stat | None]:
        """The stats of many znodes, asked for all at once."""
        return await asyncio.gather(*(self.stat(path) for path in paths))

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """The names below a path, in no order."""
        try:
            names = await self._call(lambda: self._client.get_children_async(path, watch=self._watch(watch)))
        except kazoo_errors.NoNodeError:
            raise LinkRefused(f"{path} is missing; was it deleted? Nodes that start make it anew") from None
        return [str(name) for name in names]

    async def sync(self, path: str) -> None:
        """Let the server catch up with the ensemble, so that reads after this see all that was written before it."""
        await self._call(lambda: self._client.sync_async(path))

    async def commit(self, operations: Sequence[Operation]) -> list[str]:
        """Do all of `operations` or none; returns what each answered, the path for a `Create`. Raises `Refused`."""
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case Delete(path):
                    transaction.delete(path)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Check(path, version):
                    transaction.check(path, version)
        results = await self._call(transaction.commit_async)
        for index, result in enumerate(results):
            if isinstance(result, Exception):
                _raise_refusal(index, result)
        return [str(result) for result in results]

    async def _call(self, begin: Callable[[], Any]) -> Any:
        self._check()
        future: asyncio.Future[Any] = self._loop.create_future()
        begin().rawlink(lambda answer: self._in_loop(_settle, future, answer))
        try:
            return await future
        except (kazoo_errors.NoNodeError, kazoo_errors.NodeExistsError):
            raise
        except kazoo_errors.SessionExpiredError as error:
            raise LinkLost from error
        except (
            kazoo_errors.ConnectionLoss,
            kazoo_errors.ConnectionClosedError,
            kazoo_errors.SessionMovedError,
        ) as error:
            self._check()
            raise LinkDown(f"connection to {self._hosts} lost") from error
        except (kazoo_errors.AuthFailedError, kazoo_errors.NoAuthError) as error:
            raise _denied(error) from error
        except kazoo_errors.KazooException as error:
            raise LinkRefused(f"{type(error).__name__} {error}".strip()) from error

    def _check(self) -> None:
        if self._denied:
            raise _denied(kazoo_errors.AuthFailedError())
        match self.state:
            case LinkState.LOST:
                raise LinkLost
            case LinkState.CONNECTED if self._client.connected:
                return
            case _:
                raise LinkDown(f"no connection to {self.trouble}")

    def _watch(self, wanted: bool) -> Callable[[object], None] | None:
        return self._watched if wanted else None

    # In kazoo's threads.

    def _watched(self, event: object) -> None:
        self._in_loop(self._changed)

    def _listen(self, state: str) -> None:
        if state == KazooState.LOST:
            self._denied = self._client.client_state == KeeperState.AUTH_FAILED
            # kazoo would go on with a new session, of which nobody here knows.
            self.give_up()
            self._cut_connection()
        else:
            connected = state == KazooState.CONNECTED
            self._in_loop(self._noted, LinkState.CONNECTED if connected else LinkState.SUSPENDED)

    def _connect(self, *arguments: Any, timeout: float, **options: Any) -> socket.socket:
        if self._cut.is_set():
            raise ConnectionAbortedError("this client is being stopped")
        try:
            made: socket.socket = self._create_connection(*arguments, timeout=min(timeout, self._connect_s), **options)
        except Exception as error:
            self._trouble = str(error) or type(error).__name__
            raise
        self._trouble = "the server accepts connections and does not answer"
        self._socket = made
        if self._cut.is_set():
            _shut(made)
        return made

    def _stop(self, grace_s: float) -> None:
        if grace_s <= 0 or not self._client.connected:
            self._cut_connection()
        too_late = threading.Timer(grace_s, self._cut_connection)
        too_late.daemon = True
        too_late.start()
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            logger.warning("client did not stop cleanly", extra={"servers": self._hosts, "error": repr(error)})
        finally:
            too_late.cancel()
            self._in_loop(self._stopped.set)

    def _cut_connection(self) -> None:
        self._cut.set()
        if self._socket is not None:
            _shut(self._socket)

    def _in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return  # the loop is closed: nobody is left to be told

    # In the event loop.

    def _noted(self, state: LinkState) -> None:
        if self._lost.is_set():
            state = LinkState.LOST
        if state is not self._state:
            logger.info("session state", extra={"state": state, "previous": self._state, "servers": self._hosts})
            self._state = state
            self._suspended_s = self._loop.time() if state is LinkState.SUSPENDED else None
        if state is not LinkState.SUSPENDED:
            self._connected.set()
        self._changed()


def _settle(future: "asyncio.Future[Any]", answer: Any) -> None:
    if future.done():
        return  # given up meanwhile
    if answer.exception is None:
        future.set_result(answer.value)
    else:
        future.set_exception(answer.exception)


def _stat(found: Any) -> Stat:
    return Stat(
        made_by=found.czxid,
        made_at=datetime.fromtimestamp(found.ctime / 1000, UTC),
        children_by=found.pzxid,
        version=found.version,
        session=found.ephemeralOwner or 0,
    )


def _raise_refusal(index: int, error: Exception) -> None:
    match error:
        case kazoo_errors.RolledBackError():
            return  # an operation before the one that failed
        case kazoo_errors.NoNodeError():
            raise Refused(index, Reason.ABSENT)
        case kazoo_errors.NodeExistsError():
            raise Refused(index, Reason.EXISTS)
        case kazoo_errors.BadVersionError():
            raise Refused(index, Reason.CHANGED)
        case kazoo_errors.NoAuthError():
            raise _denied(error)
        case _:
            raise LinkRefused(f"{type(error).__name__} {error}".strip())


def _denied(error: Exception) -> LinkRefused:
    if isinstance(error, kazoo_errors.AuthFailedError):
        return LinkRefused("ZooKeeper does not accept this node's credentials")
    return LinkRefused("this node's credentials do not give it access to these znodes")


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed already
