"""The demo's processes: PostgreSQL, nodes and workers."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from server.demo.handlers import LOG_VARIABLE
from server.demo.leases import Leases
from server.demo.process import DemoProcess
from server.demo.report import Killing
from server.demo.settings import DemoSettings, Kill
from server.embedded import EmbeddedPostgres
from server.embedded.port import LOOPBACK, choose_port
from server.store.migrate import migrate

# Short, so that the take-over is there to be watched; 10 s is the default.
_SESSION_TTL: Final = "2s"


class ProcessEnded(Exception):
    """A process of the demo has ended although nobody killed it; the text holds the end of its output."""


class Cluster:
    """To be used in `async with`, from the main thread's event loop."""

    def __init__(self, settings: DemoSettings, folder: Path) -> None:
        """Describe a cluster with everything it writes in `folder`; nothing is started yet.

        Raises `ZookeeperMissing`.
        """
        self._settings = settings
        self._folder = folder
        self._postgres = EmbeddedPostgres(folder / "postgres")
        self._leases = Leases(settings.coordinator, folder / "zookeeper")
        self._nodes: list[DemoProcess] = []
        self._workers: list[DemoProcess] = []
        self.address = ""
        """Addresses of all nodes, with commas between."""
        self.logs: list[Path] = []
        """The workers' execution logs."""

    async def __aenter__(self) -> Self:
        """Start everything."""
        try:
            starts = (_in_thread(self._postgres.start), _in_thread(self._leases.start))
            # To the end of both: they cannot be stopped while they start.
            for failure in await asyncio.gather(*starts, return_exceptions=True):
                if failure is not None:
                    raise failure
            await migrate(self._postgres.dsn)
            self._describe()
            for process in (*self._nodes, *self._workers):
                process.start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything; what it knew goes away with the folder."""
        await self._end()

    @property
    def dsn(self) -> str:
        """Connection URI of the database."""
        return self._postgres.dsn

    @property
    def nodes(self) -> list[str]:
        """The nodes' names."""
        return [node.name for node in self._nodes]

    def check(self) -> None:
        """Raise `ProcessEnded` if a process has ended by itself."""
        for process in (*self._nodes, *self._workers):
            if process.has_failed:
                raise ProcessEnded(f"{process.name} has ended; the end of its output:\n{process.output_tail()}")

    def victim(self, kind: Kill) -> str:
        """Return the name of what `kill` would kill."""
        return self._group(kind)[0].name

    def kill(self, kind: Kill) -> Killing:
        """Kill the first of a kind, and start it again if it is the only one."""
        group = self._group(kind)
        at = time.time()
        group[0].kill()
        killing = Killing(kind=kind, name=group[0].name, at=at, gone_at=time.time())
        if len(group) == 1:
            group[0].start()
        return killing

    def _group(self, kind: Kill) -> list[DemoProcess]:
        return self._nodes if kind is Kill.NODE else self._workers

    def _describe(self) -> None:
        draw = random.Random()
        ports: list[int] = []
        while len(ports) < self._settings.nodes:
            port = choose_port(draw)
            if port not in ports:
                ports.append(port)
        self.address = ",".join(f"{LOOPBACK}:{port}" for port in ports)
        self._nodes = [self._node(f"node-{number}", port) for number, port in enumerate(ports, start=1)]
        self._workers = [self._worker(f"worker-{number}") for number in range(1, self._settings.workers + 1)]

    def _node(self, name: str, port: int) -> DemoProcess:
        environment = {
            # Not as a flag: everybody can see those.
            "SHARDWHEEL_DATABASE": self._postgres.dsn,
            "SHARDWHEEL_NODE": name,
            "SHARDWHEEL_LISTEN": f"{LOOPBACK}:{port}",
            "SHARDWHEEL_HTTP_LISTEN": "off",
            "SHARDWHEEL_DATA_DIR": str(self._folder / name),
            "SHARDWHEEL_SESSION_TTL": _SESSION_TTL,
            "SHARDWHEEL_LOG_LEVEL": "warning",
            **self._leases.settings,
        }
        return DemoProcess(name, ["-m", "server.cli", "serve"], environment, self._folder)

    def _worker(self, name: str) -> DemoProcess:
        log = self._folder / f"{name}.log"
        self.logs.append(log)
        environment = {LOG_VARIABLE: str(log)}
        arguments = ["-m", "worker_sdk", "server.demo.handlers:worker", "--name", name, "--address", self.address]
        return DemoProcess(name, [*arguments, "--log-level", "WARNING"], environment, self._folder)

    async def _end(self) -> None:
        for process in (*self._workers, *self._nodes):
            process.kill()
        await _in_thread(self._leases.kill)
        await _in_thread(self._postgres.kill)


async def _in_thread(function: Callable[[], None]) -> None:
    """Run a blocking function to its end, even if the caller is cancelled meanwhile."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
