"""One embedded ZooKeeper server: its data, its process, its address."""

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from server.embedded.errors import EmbeddedZookeeperError
from server.embedded.port import LOOPBACK, choose_port
from server.embedded.watchdog import Watchdog
from server.embedded.zookeeper_installation import ZookeeperInstallation

TICK_MS: Final = 500
"""Length of a tick: sessions last at least two, and end up to one later than they should."""

_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A small, quickly started JVM. What a power failure would lose is lost with the folder anyway.
_JVM: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
_SETTINGS: Final[Mapping[str, str]] = {
    "initLimit": "20",
    "syncLimit": "10",
    "clientPortAddress": LOOPBACK,
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}
_LOGGING: Final = """\
log4j.rootLogger=WARN, STDERR
log4j.appender.STDERR=org.apache.log4j.ConsoleAppender
log4j.appender.STDERR.target=System.err
log4j.appender.STDERR.layout=org.apache.log4j.PatternLayout
log4j.appender.STDERR.layout.ConversionPattern=%d %p %c - %m%n
"""
_POLL_S: Final = 0.02
_STOP_S: Final = 20.0
_LOG_TAIL_CHARS: Final = 2000
_WORD_TIMEOUT_S: Final = 1.0


class EmbeddedZookeeper:
    """A ZooKeeper server on the loopback address with its data in a folder of its own: for the demo and the tests.

    It may be stopped, killed and started again on the same data and port, and ends when the process that started it
    ends, however that happens. Its commits are not forced to the disk: they survive the end of the process, not that
    of the machine. Methods block; from a coroutine, call them in a thread.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        tick_ms: int = TICK_MS,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        ephemeral: bool = False,
        start_timeout_s: float = 30.0,
    ) -> None:
        """Describe a server in `data_dir`, which is made if it is missing. Raises `ZookeeperMissing`.

        `settings` override or add lines of its configuration, `properties` go to its JVM. An `ephemeral` server's
        folder is removed when it is closed, or when the process that started it ends.
        """
        self._installation = ZookeeperInstallation.find()
        self._folder = data_dir
        self._properties = dict(properties or {})
        self._ephemeral = ephemeral
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self.port = choose_port(random.Random())
        self._configure({"tickTime": str(tick_ms), **_SETTINGS, **(settings or {})})

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
        return self._folder

    @property
    def hosts(self) -> str:
        """HOST:PORT for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id. Raises `EmbeddedZookeeperError` if the server was not started."""
        if self._process is None:
            raise EmbeddedZookeeperError("the embedded ZooKeeper is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def mode(self) -> str:
        """ "standalone", "leader" or "follower"; empty while it does not serve."""
        for line in four_letter_word(self.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def start(self, *, wait: bool = True) -> None:
        """Start the server, and return when it serves. Raises `EmbeddedZookeeperError` with the end of its log."""
        if self.running:
            return
        self._forget()
        options = [*_JVM, *(f"-D{name}={value}" for name, value in self._properties.items())]
        class_path = f"{self._installation.class_path}:{self._folder}"
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [self._installation.java, *options, "-cp", class_path, _MAIN, str(self._folder / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                # A Ctrl-C is for whoever started it.
                start_new_session=True,
            )
        self._watchdog = Watchdog(
            self._process.pid,
            names=("java",),
            hard=signal.SIGKILL,
            remove=self._folder if self._ephemeral else None,
        )
        if wait:
            try:
                self.wait()
            except BaseException:
                self.kill()
                raise

    def wait(self) -> None:
        """Return when it serves. Raises `EmbeddedZookeeperError` if it ends before, or after `start_timeout_s`."""
        deadline = time.monotonic() + self._start_timeout_s
        while not self.mode:
            if not self.running:
                raise self._failure("ZooKeeper ended at its start")
            if time.monotonic() >= deadline:
                raise self._failure(f"ZooKeeper did not serve after {self._start_timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the server in good order; kill it if it takes longer than 20 s."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server (-9)."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the server; remove its folder if it is ephemeral."""
        if self._ephemeral:
            self.kill()
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self.stop()

    def log(self) -> str:
        """What the server has logged."""
        return self._log_file.read_text(errors="replace")

    @property
    def _log_file(self) -> Path:
        return self._folder / "zookeeper.log"

    def _configure(self, settings: Mapping[str, str]) -> None:
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        lines = {"dataDir": str(data), "clientPort": str(self.port), **settings}
        (self._folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self._folder / "log4j.properties").write_text(_LOGGING)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                # It was stopped by SIGSTOP, or hangs.
                self._process.kill()
                self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._process = None

    def _failure(self, what: str) -> EmbeddedZookeeperError:
        return EmbeddedZookeeperError(f"{what}; the end of {self._log_file}:\n{self.log()[-_LOG_TAIL_CHARS:]}")


def four_letter_word(port: int, word: str, *, host: str = LOOPBACK) -> str:
    """What a server answers to one of its administrative words; empty if it does not answer within a second."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=_WORD_TIMEOUT_S) as connection:
            connection.sendall(word.encode())
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return ""
    return answer.decode(errors="replace")
