"""A cluster's own ZooKeeper: one server or three, which may be stopped."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final

from server.embedded.zookeeper import TICK_MS
from tests.support.zookeeper import ZookeeperEnsemble, ZookeeperServer

CHROOT: Final = "/chaos"


class ZookeeperSite:
    """The servers, started and stopped by one task at a time, which holds `lock`."""

    def __init__(self, servers: list[ZookeeperServer]) -> None:
        self.servers = servers
        self.lock = asyncio.Lock()

    @property
    def ports(self) -> list[int]:
        """The client ports of all servers."""
        return [server.port for server in self.servers]

    @property
    def is_whole(self) -> bool:
        """Whether all servers run and serve."""
        return all(server.running and server.mode for server in self.servers)

    def leader(self) -> ZookeeperServer | None:
        """Return the server that leads the others; None if none does."""
        return next((server for server in self.servers if server.running and server.mode == "leader"), None)

    def start(self) -> None:
        """Start what is down, and wait until all serve. Stopped processes go on."""
        down = [server for server in self.servers if not server.running]
        for server in self.servers:
            if server not in down:
                os.kill(server.pid, signal.SIGCONT)
        for server in down:
            server.start(wait=False)
        for server in down:
            server.wait()


@contextlib.contextmanager
def zookeeper_site(*, ensemble: bool = False) -> Iterator[ZookeeperSite]:
    """Start one server, or an ensemble of three."""
    if ensemble:
        with ZookeeperEnsemble(tick_ms=TICK_MS) as three:
            yield ZookeeperSite(three.servers)
    else:
        with ZookeeperServer(tick_ms=TICK_MS) as server:
            yield ZookeeperSite([server])
