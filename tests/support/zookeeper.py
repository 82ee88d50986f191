"""Real ZooKeeper servers for tests: one, or an ensemble of three."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kazoo.client import KazooClient

from tests.support.scratch import make_folder
from tests.support.waiting import wait_until

#: Names HOST:PORT of a running server; tests that stop or kill servers start their own all the same.
ADDRESS_VARIABLE: Final = "SHARDWHEEL_TEST_ZOOKEEPER"
TICK_MS: Final = 500

_JARS: Final = Path("/usr/share/java")
_NEEDED: Final = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-log4j12.jar", "log4j-1.2.jar")
# Without these the server cannot speak TLS.
_NETTY: Final = ("all", "buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_S: Final = 30.0
_LOGGING: Final = """\
log4j.rootLogger=WARN, STDERR
log4j.appender.STDERR=org.apache.log4j.ConsoleAppender
log4j.appender.STDERR.target=System.err
log4j.appender.STDERR.layout=org.apache.log4j.PatternLayout
log4j.appender.STDERR.layout.ConversionPattern=%d %p %c - %m%n
"""


class ZookeeperMissing(Exception):
    """There is no ZooKeeper to test with; the text says how to get one."""


class ZookeeperServer:
    """A server in a temporary folder that tests may stop, kill, pause and start again on the same data.

    The port stays the same. It goes away with `close`, and also if the test run is killed. `settings` go into its
    configuration, `properties` to its JVM. `peers` are all servers of its ensemble, of which it is `number`.
    """

    def __init__(
        self,
        *,
        tick_ms: int = TICK_MS,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        number: int = 0,
        peers: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self._class_path = _class_path()
        self._folder = make_folder("shardwheel-test-zk-")
        self._properties = dict(properties or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        self._configure(tick_ms, settings or {}, number, peers or {})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def hosts(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def mode(self) -> str:
        """ "standalone", "leader" or "follower"; empty while it does not serve."""
        for line in four_letter_word(self.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it serves."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _java(), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
                    *(f"-D{name}={value}" for name, value in self._properties.items()),
                    "-cp", self._class_path + f":{self._folder}", _MAIN, str(self._folder / "zoo.cfg"),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        # Ends the server when this process is gone, however it went: then its end of the pipe is closed.
        self._reaper = subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; kill -9 "$1"', "sh", str(self._process.pid)], stdin=subprocess.PIPE
        )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until it serves."""

        def serves() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"ZooKeeper ended at its start:\n{self.log()[-2000:]}")
            return bool(self.mode)

        wait_until(serves, timeout_s=_START_S, what=f"ZooKeeper serving on port {self.port}")

    def stop(self) -> None:
        """Stop it in good order."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep it from running, as a machine that hangs; its clock goes on."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Remove the data of a stopped server."""
        shutil.rmtree(self._folder / "data" / "version-2")

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """Stop it and remove its data."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait(20)
        reaper, self._reaper = self._reaper, None
        assert reaper is not None
        assert reaper.stdin is not None
        # Not by closing the pipe, for it would kill whoever has the number of the server by now.
        reaper.kill()
        reaper.wait(20)
        reaper.stdin.close()

    def _configure(
        self, tick_ms: int, settings: Mapping[str, str], number: int, peers: Mapping[int, tuple[int, int]]
    ) -> None:
        data = self._folder / "data"
        data.mkdir()
        lines = {
            "tickTime": str(tick_ms),
            "initLimit": "20",
            "syncLimit": "10",
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **{f"server.{peer}": f"127.0.0.1:{one}:{two}" for peer, (one, two) in peers.items()},
            **settings,
        }
        (self._folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self._folder / "log4j.properties").write_text(_LOGGING)
        if peers:
            (data / "myid").write_text(str(number))


class ZookeeperEnsemble:
    """Three servers, of which one may be away."""

    def __init__(self, *, tick_ms: int = TICK_MS) -> None:
        ports = free_ports(6)
        peers = {number: (ports[2 * number - 2], ports[2 * number - 1]) for number in (1, 2, 3)}
        self.servers = [ZookeeperServer(tick_ms=tick_ms, number=number, peers=peers) for number in peers]

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self.servers:
            server.close()

    @property
    def hosts(self) -> str:
        """HOST:PORT of all, for clients."""
        return ",".join(server.hosts for server in self.servers)

    @property
    def leader(self) -> ZookeeperServer:
        [leader] = [server for server in self.servers if server.running and server.mode == "leader"]
        return leader


@contextlib.contextmanager
def shared_server(*, tick_ms: int = TICK_MS) -> Iterator[str]:
    """HOST:PORT of the server that `SHARDWHEEL_TEST_ZOOKEEPER` names, or of one that is started."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if address:
        if not four_letter_word(int(address.rpartition(":")[2]), "srvr", host=address.rpartition(":")[0]):
            raise ZookeeperMissing(f"{ADDRESS_VARIABLE} is {address}, where no ZooKeeper answers")
        yield address
        return
    with ZookeeperServer(tick_ms=tick_ms) as server:
        yield server.hosts


def end_session(hosts: str, session: tuple[int, bytes]) -> None:
    """End a session at once, as its expiry would, whoever keeps it alive; `session` is its number and password."""
    intruder = KazooClient(hosts=hosts, client_id=session, timeout=10)
    try:
        intruder.start(5)
    finally:
        intruder.stop()
        intruder.close()


def four_letter_word(port: int, word: str, *, host: str = "127.0.0.1") -> str:
    """What a server answers to one of its administrative words; empty if it does not answer within a second."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.sendall(word.encode())
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return ""
    return answer.decode(errors="replace")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody uses at this moment, all different."""
    with contextlib.ExitStack() as open_sockets:
        probes = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _class_path() -> str:
    if not _is_complete():
        _install()
    netty = [str(_JARS / f"netty-{part}.jar") for part in _NETTY if (_JARS / f"netty-{part}.jar").exists()]
    return ":".join([*(str(_JARS / jar) for jar in _NEEDED), *netty])


def _java() -> str:
    java = shutil.which("java")
    assert java is not None, "the class path was looked for first"
    return java


def _is_complete() -> bool:
    return shutil.which("java") is not None and all((_JARS / jar).exists() for jar in _NEEDED)


def _install() -> None:
    """Install Debian's packages if this process may. Raises `ZookeeperMissing`."""
    packages = ["libzookeeper-java"]
    if shutil.which("java") is None:
        packages.append("default-jre-headless")
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise ZookeeperMissing(
            f"these tests need ZooKeeper: run `{' '.join(command)}` as root, or name a running server in "
            f"{ADDRESS_VARIABLE}=host:port"
        )
    with (Path(tempfile.gettempdir()) / "shardwheel-apt.lock").open("w") as lock:
        # Two test runs at once would be in each other's way.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete():
            _run(["apt-get", "update"])
            _run(command)
    if not _is_complete():
        raise ZookeeperMissing(f"{' '.join(packages)} are installed, but {_JARS} lacks some of {', '.join(_NEEDED)}")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise ZookeeperMissing(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
