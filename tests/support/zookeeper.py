"""Real ZooKeeper servers for tests: one, or an ensemble of three."""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient

from server.embedded.errors import ZookeeperMissing
from server.embedded.zookeeper import TICK_MS, EmbeddedZookeeper, four_letter_word
from server.embedded.zookeeper_installation import ADDRESS_VARIABLE, ZookeeperInstallation
from tests.support.scratch import make_folder
from tests.support.stopping import stop_process


class ZookeeperServer(EmbeddedZookeeper):
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
        ZookeeperInstallation.install()
        lines = {f"server.{peer}": f"127.0.0.1:{one}:{two}" for peer, (one, two) in (peers or {}).items()}
        super().__init__(
            make_folder("shardwheel-test-zk-"),
            tick_ms=tick_ms,
            settings={**lines, **(settings or {})},
            properties=properties,
            ephemeral=True,
        )
        if peers:
            (self.data_dir / "data" / "myid").write_text(str(number))

    def kill9(self) -> None:
        self.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep it from running, as a machine that hangs; its clock goes on."""
        stop_process(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Remove the data of a stopped server."""
        shutil.rmtree(self.data_dir / "data" / "version-2")


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
        host, _, port = address.rpartition(":")
        if not four_letter_word(int(port), "srvr", host=host):
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


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody uses at this moment, all different."""
    with contextlib.ExitStack() as open_sockets:
        probes = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
