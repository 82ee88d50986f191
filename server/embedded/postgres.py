"""One embedded PostgreSQL server: its data, its process, its address."""

import logging
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from server.embedded import remains
from server.embedded.account import Account
from server.embedded.data import DATABASE, ROLE, prepare
from server.embedded.errors import EmbeddedPostgresError
from server.embedded.folder import ServerFolder
from server.embedded.installation import PostgresInstallation
from server.embedded.port import LOOPBACK, choose_port, is_free
from server.embedded.watchdog import Watchdog

_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": LOOPBACK,
    # A socket file would need a short path and leave remains behind after a kill.
    "unix_socket_directories": "",
    "max_connections": "200",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    # Many partitions: one statement of a migration may lock hundreds of tables.
    "max_locks_per_transaction": "256",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_checkpoints": "off",
}
_POLL_S = 0.02
_PORT_ATTEMPTS = 3
_LOG_LIMIT_BYTES = 10 * 1024 * 1024
_LOG_TAIL_BYTES = 3000

_log = logging.getLogger(__name__)


class StopMode(Enum):
    """How to stop a server, ever harder; the value is the signal that asks for it."""

    #: Wait until every client has gone.
    SMART = signal.SIGTERM
    #: End the connections, roll back, write a checkpoint.
    FAST = signal.SIGINT
    #: Quit without a checkpoint; the next start recovers from the log.
    IMMEDIATE = signal.SIGQUIT


class EmbeddedPostgres:
    """A PostgreSQL server on the loopback address with its data in a folder of its own.

    The folder holds `pgdata`, `postgres.log`, and files that keep the port and the password over restarts. Methods
    block, for seconds at the first start; from a coroutine, call them in a thread. They are not to be called by two
    threads at once.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        installation: PostgresInstallation | None = None,
        settings: Mapping[str, str] | None = None,
        ephemeral: bool = False,
        start_timeout_s: float = 120.0,
    ) -> None:
        """Describe a server; nothing is touched before `start`.

        `installation` defaults to the bundled programs; `settings` override or add configuration parameters. An
        `ephemeral` server's folder is removed when it is closed, or when the process that started it ends.
        `start_timeout_s` bounds one start, recovery after a crash included.
        """
        self._folder = ServerFolder(data_dir)
        self._installation = installation
        self._settings = {**_SETTINGS, **(settings or {})}
        self._ephemeral = ephemeral
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server, and remove its folder if it is ephemeral."""
        self.close()

    @property
    def data_dir(self) -> Path:
        """The folder with everything that belongs to the server."""
        return self._folder.path

    @property
    def log_file(self) -> Path:
        """The server's log."""
        return self._folder.log

    @property
    def running(self) -> bool:
        """Whether the server's process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises `EmbeddedPostgresError` if the server is not running."""
        if self._process is None or not self.running:
            raise EmbeddedPostgresError(f"the server on {self.data_dir} is not running")
        return self._process.pid

    @property
    def port(self) -> int:
        """The port, the same over restarts. Raises `EmbeddedPostgresError` before the first start."""
        port = self._folder.port
        if port is None:
            raise EmbeddedPostgresError(f"the server on {self.data_dir} was never started, so it has no port yet")
        return port

    @property
    def dsn(self) -> str:
        """The connection URI of the database `shardwheel`, the password included."""
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        """Return the connection URI of a database of this server. Raises `EmbeddedPostgresError` as `port` does."""
        return f"postgresql://{ROLE}:{self._folder.password()}@{LOOPBACK}:{self.port}/{database}"

    def start(self) -> None:
        """Start the server, making its data first if there are none, and return when it accepts connections.

        Raises `EmbeddedPostgresError` if the folder is in use by another process, the data are of another major
        version, or PostgreSQL does not come up; the text holds the end of its log.
        """
        if self.running:
            return
        # After an unexpected end, the lock and the watchdog of that run are still there.
        self._forget()
        self._folder.take()
        try:
            installation = self._installation or PostgresInstallation.bundled()
            owner = self._folder.pgdata.stat().st_uid if self._folder.pgdata.exists() else None
            account = Account.choose(installation, self.data_dir, owner)
            prepare(self._folder, installation, account, sync=self._settings.get("fsync") != "off")
            self._run(installation, account)
        except BaseException:
            self.kill()
            raise

    def stop(self, mode: StopMode = StopMode.FAST, *, timeout_s: float = 30.0) -> None:
        """Stop the server and wait until it is gone; harder after each `timeout_s` if it does not go.

        A server that is not running is left as it is.
        """
        if self._process is not None:
            modes = list(StopMode)
            if not any(self._signal_and_wait(step, timeout_s) for step in modes[modes.index(mode) :]):
                self.kill()
        self._forget()

    def kill(self) -> None:
        """Kill all of the server's processes with SIGKILL, as a crash of the machine would, and wait for their end.

        A server that is not running is left as it is.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            remains.kill_processes(self._folder.pgdata)
        self._forget()

    def close(self) -> None:
        """Stop the server; remove its folder if it is ephemeral."""
        self.stop(StopMode.IMMEDIATE if self._ephemeral else StopMode.FAST)
        if self._ephemeral:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _run(self, installation: PostgresInstallation, account: Account) -> None:
        draw = random.Random(secrets.randbits(64))
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = self._folder.port
            if port is None or not is_free(port):
                port = choose_port(draw)
                self._folder.remember_port(port)
            try:
                self._launch(installation, account, port)
            except EmbeddedPostgresError:
                # Between the look at the port and its use, another program may have taken it.
                if is_free(port) or attempt == _PORT_ATTEMPTS:
                    raise
                self._cancel_watchdog()
                _log.warning("port %d was taken by another program, choosing another one", port)
            else:
                return

    def _launch(self, installation: PostgresInstallation, account: Account, port: int) -> None:
        parameters = self._settings | {"port": str(port)}
        options = [part for name, value in parameters.items() for part in ("-c", f"{name}={value}")]
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_LIMIT_BYTES:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        with self.log_file.open("ab") as log:
            self._process = account.popen(
                [installation.program("postgres"), "-D", self._folder.pgdata, *options], stdout=log
            )
        self._watchdog = Watchdog(self._process.pid, remove=self.data_dir if self._ephemeral else None)
        self._wait_until_ready(self._process)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            lines = remains.pid_file_lines(self._folder.pgdata)
            # The last of eight lines is the state; a file of the run before has another number in its first.
            if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7] == "ready":
                return
            if process.poll() is not None:
                raise self._failure(f"PostgreSQL ended with exit code {process.returncode}")
            if time.monotonic() >= deadline:
                raise self._failure(f"PostgreSQL was not ready after {self._start_timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def _signal_and_wait(self, mode: StopMode, timeout_s: float) -> bool:
        assert self._process is not None
        self._process.send_signal(mode.value)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _log.warning("the embedded server did not stop within %.0f s of %s", timeout_s, mode.value.name)
            return False
        return True

    def _forget(self) -> None:
        """Let go of a run that has ended."""
        self._cancel_watchdog()
        self._process = None
        self._folder.release()

    def _cancel_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _failure(self, what: str) -> EmbeddedPostgresError:
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - _LOG_TAIL_BYTES))
            tail = file.read().decode(errors="replace")
        return EmbeddedPostgresError(f"{what}; the end of {self.log_file}:\n{tail}")
