"""A cluster of processes: PostgreSQL, ZooKeeper, nodes and workers."""

import asyncio
import contextlib
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

from benchmarks.cluster.audit import Audit
from benchmarks.cluster.node_log import ShardEvent, read_log
from server.demo.handlers import LOG_VARIABLE
from server.demo.process import DemoProcess
from server.embedded import EmbeddedPostgres, EmbeddedZookeeper
from server.embedded.port import LOOPBACK, choose_port
from server.store.database import Database
from server.store.migrate import migrate
from server.store.shards import list_shards

TTL_S = 4.0
TICK_MS = 500
_POLL_S = 0.02
_START_S = 90.0


class Process(DemoProcess):
    """A process that may be stopped in all the ways there are."""

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; it may end by it."""
        self._expected_to_run = False
        os.kill(self.pid, number)

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process is not None and self._process.poll() is not None

    @property
    def output(self) -> Path:
        """All that it has printed."""
        return self._output


class BenchCluster:
    """`nodes` and `workers` by name, started and stopped by the scenario."""

    def __init__(self, folder: Path, postgres: EmbeddedPostgres, zookeeper: EmbeddedZookeeper, shards: int) -> None:
        self.shards = shards
        self.postgres = postgres
        self.zookeeper = zookeeper
        self.nodes: dict[str, Process] = {}
        self.workers: dict[str, Process] = {}
        self._addresses: dict[str, str] = {}
        self._folder = folder
        self._draw = random.Random()
        self.database = Database(postgres.dsn, hot_connections=2, api_connections=4)
        self.audit = Audit(self.database)

    async def __aenter__(self) -> Self:
        await self.database.open()
        await self.audit.install()
        return self

    async def __aexit__(self, *error: object) -> None:
        for process in (*self.workers.values(), *self.nodes.values()):
            if not process.ended:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGCONT)
            process.kill()
        await self.database.close()

    @property
    def addresses(self) -> str:
        """Of all nodes, with commas between."""
        return ",".join(self._addresses.values())

    def address(self, name: str) -> str:
        """Of one node."""
        return self._addresses[name]

    def start_node(self, name: str, **settings: str) -> Process:
        """Start a node, for the first time or again."""
        if name not in self.nodes:
            self._addresses[name] = f"{LOOPBACK}:{choose_port(self._draw)}"
            environment = {
                "DATABASE": self.postgres.dsn,
                "NODE": name,
                "LISTEN": self._addresses[name],
                "HTTP_LISTEN": "off",
                "DATA_DIR": str(self._folder / name),
                "COORDINATOR": "zookeeper",
                "ZOOKEEPER": f"{self.zookeeper.hosts}/bench",
                "SESSION_TTL": f"{TTL_S:g}s",
                "LOG_LEVEL": "info",
                **{setting.upper(): value for setting, value in settings.items()},
            }
            variables = {f"SHARDWHEEL_{setting}": value for setting, value in environment.items()}
            self.nodes[name] = Process(name, ["-m", "server.cli", "serve"], variables, self._folder)
        self.nodes[name].start()
        return self.nodes[name]

    def start_worker(self, name: str) -> Process:
        """Start a worker that knows the nodes started so far."""
        arguments = ["-m", "worker_sdk", "server.demo.handlers:worker", "--name", name, "--address", self.addresses]
        environment = {LOG_VARIABLE: str(self._folder / f"{name}.log")}
        self.workers[name] = Process(name, arguments, environment, self._folder)
        self.workers[name].start()
        return self.workers[name]

    async def start(self, *, nodes: int, workers: int = 2) -> None:
        """Start all and wait until every shard is served and the nodes are balanced."""
        for number in range(1, nodes + 1):
            self.start_node(f"node-{number}")
        for number in range(1, workers + 1):
            self.start_worker(f"worker-{number}")
        await self.until_balanced(list(self.nodes))

    async def owners(self) -> dict[int, str]:
        """Shard to node, as the table of shards has it."""
        return {row.shard: row.owner for row in await list_shards(self.database) if row.owner}

    async def until_balanced(self, nodes: Sequence[str]) -> None:
        """Wait until these nodes serve all shards, none more than one shard more than another."""

        async def balanced() -> bool:
            owners = list((await self.owners()).values())
            counts = [owners.count(node) for node in nodes]
            return sum(counts) == self.shards and max(counts) - min(counts) <= 1

        await until(balanced, _START_S, "balance")

    def events(self) -> list[ShardEvent]:
        """What the nodes' logs say about shards, in order of time."""
        return sorted(event for node in self.nodes.values() for event in read_log(node.output))

    def execution_logs(self) -> list[Path]:
        """The workers' files."""
        return [self._folder / f"{name}.log" for name in self.workers]


@contextlib.asynccontextmanager
async def bench_cluster(*, shards: int = 64, partitions: int = 16) -> AsyncIterator[BenchCluster]:
    """A cluster without nodes, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="shardwheel-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # noqa: ASYNC240 - before anything runs
        with (
            EmbeddedPostgres(folder / "postgres") as postgres,
            EmbeddedZookeeper(folder / "zookeeper", tick_ms=TICK_MS) as zookeeper,
        ):
            await migrate(postgres.dsn, shards=shards, partitions=partitions)
            async with BenchCluster(folder, postgres, zookeeper, shards) as cluster:
                yield cluster


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> None:
    """Wait until something is true. Raises TimeoutError."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():  # noqa: ASYNC110 - what is waited for happens elsewhere
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise TimeoutError(f"{what}: not within {timeout_s:g} s") from None
