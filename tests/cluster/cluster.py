"""A cluster of processes around one PostgreSQL server."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import grpc
from grpc_health.v1 import health_pb2

from server.embedded.port import LOOPBACK
from tests.cluster.addresses import Place, Places
from tests.cluster.evidence import live_workers
from tests.cluster.journal import Journal
from tests.cluster.logs import latest_leader
from tests.cluster.network import Network
from tests.cluster.processes import ClusterProcess
from tests.cluster.security import Security
from tests.cluster.worker_program import EXECUTIONS_VARIABLE
from tests.cluster.zookeeper import ZookeeperSite
from tests.support.postgres import PostgresServer
from tests.support.postgres_site import PostgresSite
from tests.support.waiting import eventually
from worker_sdk.connection import ConnectionOptions

WORKER_PROGRAM: Final = "tests.cluster.worker_program:worker"
_START_TIMEOUT_S: Final = 90.0

QUICK: Final[Mapping[str, str]] = {
    "heartbeat": "500ms",
    "worker_lease": "5s",
    "reset_grace": "3s",
    "kill_grace": "2s",
    "session_ttl": "5s",
    "drain_grace": "3s",
}
"""Settings of a node: as short as a busy machine of two cores allows without taking the slow for dead."""


class Cluster:
    """To be used in `async with`, from the main thread's event loop: starts everything, and ends everything.

    PostgreSQL and ZooKeeper are not the cluster's own: they are there before, and are left running.
    """

    def __init__(
        self,
        folder: Path,
        postgres: PostgresServer | PostgresSite,
        dsn: str,
        *,
        nodes: int = 1,
        workers: int = 2,
        settings: Mapping[str, str] = QUICK,
        worker_grace_s: float = 5.0,
        zookeeper: ZookeeperSite | None = None,
        relayed: bool = False,
        secure: bool = False,
    ) -> None:
        """Describe a cluster on the migrated database `dsn`; `settings` are those of the nodes.

        The nodes coordinate through `zookeeper`, else through PostgreSQL. If the cluster is `relayed`, all connections
        lead through its network, which can be broken. A `secure` one has TLS, and answers nobody without a token.
        """
        self.folder = folder
        self.security = Security(folder) if secure else None
        self.site = PostgresSite.of(postgres)
        self.dsn = dsn
        self.settings = dict(settings)
        self.journal = Journal(folder / "processes.journal")
        self.clock_journal = Journal(folder / "clock.journal")
        self._worker_grace_s = worker_grace_s
        # PostgreSQL is started and stopped by one task at a time.
        self.postgres_lock = asyncio.Lock()
        self.zookeeper = zookeeper
        self.network = Network(folder, self.journal) if relayed else None
        self.places = Places(
            nodes=nodes,
            postgres=self.site.ports,
            zookeeper=zookeeper.ports if zookeeper is not None else [],
            relayed=relayed,
        )
        self.addresses = [place.address for place in self.places.nodes]
        self.nodes = [self._node(place) for place in self.places.nodes]
        self.workers: list[ClusterProcess] = []
        self.execution_files: list[Path] = []
        for number in range(1, workers + 1):
            self.add_worker(f"worker-{number}")

    async def __aenter__(self) -> Self:
        try:
            if self.security is not None:
                await self.security.open(self.dsn)
            if self.network is not None:
                self.network.start()
                await self.places.open(self.network)
            for process in (*self.nodes, *self.workers):
                process.start()
            await self.until_ready()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        await self.restore_postgres()

    @property
    def postgres(self) -> PostgresServer:
        """The server that is written to."""
        return self.site.server

    @property
    def address(self) -> str:
        """Addresses of all nodes, with commas between."""
        return ",".join(self.addresses)

    @property
    def client_options(self) -> ConnectionOptions:
        """How a client reaches the cluster."""
        options: ConnectionOptions = {"address": self.address}
        return options if self.security is None else {**options, **self.security.client_options}

    @property
    def processes(self) -> list[ClusterProcess]:
        """Nodes and workers."""
        return [*self.nodes, *self.workers]

    def add_worker(self, name: str, *, grace_s: float | None = None) -> ClusterProcess:
        """Describe one more worker; two of one name share a file. It is not started yet."""
        file = self.folder / f"{name}.executions"
        if file not in self.execution_files:
            self.execution_files.append(file)
        grace_s = self._worker_grace_s if grace_s is None else grace_s
        command = ["-m", "worker_sdk", WORKER_PROGRAM, "--name", name, "--address", self.address]
        variables = {EXECUTIONS_VARIABLE: str(file)}
        if self.security is not None:
            variables |= self.security.worker_variables
        worker = ClusterProcess(
            "worker", name, [*command, "--grace", str(grace_s)], variables, self.folder, self.journal
        )
        self.workers.append(worker)
        return worker

    async def until_ready(self) -> None:
        """Wait until every node serves and every worker that runs has its lease."""
        for node, place in zip(self.nodes, self.places.nodes, strict=True):
            if node.running:
                await self._until_serving(node, _direct(place))
        await self.until_connected(worker.name for worker in self.workers if worker.running)

    async def until_connected(self, names: Iterable[str]) -> None:
        """Wait until workers of these names have leases."""
        wanted = set(names)

        async def connected() -> bool:
            self.check()
            return wanted <= await asyncio.to_thread(live_workers, self.dsn)

        await eventually(connected, timeout_s=_START_TIMEOUT_S, what=f"the leases of {sorted(wanted)}")

    async def heal(self, *, resume: bool = True) -> None:
        """Bring everything back that is down."""
        await self.restore_postgres()
        if self.zookeeper is not None:
            async with self.zookeeper.lock:
                await asyncio.to_thread(self.zookeeper.start)
        for process in self.processes:
            if process.running and resume:
                process.resume(process.pid)
            process.start()

    async def restore_postgres(self) -> None:
        """Start PostgreSQL if it is down."""
        async with self.postgres_lock:
            await self.start_postgres()

    async def start_postgres(self) -> None:
        """Start PostgreSQL if it is down; for whoever holds the lock."""
        await asyncio.to_thread(self.site.start)

    def move_clock(self, by_s: float) -> None:
        """Move PostgreSQL's clock, and write it down."""
        clock = self.site.clock
        assert clock is not None, "PostgreSQL's clock cannot be moved here"
        clock.jump(by_s)
        self.clock_journal.write("moved", offset_s=clock.offset_s)

    def leader(self) -> ClusterProcess | None:
        """Return the node that leads, by the latest word of any node; None if it does not run, or there is none."""
        name = latest_leader(node.output_file for node in self.nodes)
        return next((node for node in self.nodes if node.name == name and node.running), None)

    async def supervise(self) -> None:
        """For ever: raise AssertionError if a process has ended by itself. A node that starts while something is away
        waits for it."""
        while True:
            self.check()
            await asyncio.sleep(0.2)

    def check(self) -> None:
        """Raise AssertionError if a process has ended by itself."""
        for process in self.processes:
            assert not process.has_failed, f"{process.name} has ended by itself:\n{process.output_tail()}"

    def tails(self) -> str:
        """Return the ends of everything that processes have printed."""
        return "\n".join(f"--- {process.name}\n{process.output_tail()}" for process in self.processes)

    def _node(self, place: Place) -> ClusterProcess:
        name = place.target
        own = {
            "node": name,
            "listen": _direct(place),
            "advertise": place.address,
            "data_dir": str(self.folder / name),
            **self.places.coordination,
            **(self.security.node_settings if self.security is not None else {}),
            "log_format": "text",
            "http_listen": "off",
        }
        environment = {f"SHARDWHEEL_{key.upper()}": value for key, value in (self.settings | own).items()}

        def database(number: int) -> Mapping[str, str]:
            return {"SHARDWHEEL_DATABASE": self.places.dsn(self.dsn, f"{name}.{number}")}

        return ClusterProcess(
            "node", name, ["-m", "server.cli", "serve"], environment, self.folder, self.journal, database
        )

    async def _until_serving(self, node: ClusterProcess, address: str) -> None:
        security = self.security
        async with security.channel(address) if security is not None else grpc.aio.insecure_channel(address) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )

            async def serving() -> bool:
                assert not node.has_failed, f"{node.name} has ended by itself:\n{node.output_tail()}"
                try:
                    answer = await check(health_pb2.HealthCheckRequest(), timeout=1.0)
                except grpc.aio.AioRpcError:
                    return False
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

            await eventually(serving, timeout_s=_START_TIMEOUT_S, what=f"{node.name} to serve")

    def _end(self) -> None:
        for process in reversed(self.processes):
            process.kill()
        if self.network is not None:
            self.network.close()


class StartCluster(Protocol):
    """Starts a cluster on the test's database."""

    async def __call__(
        self,
        *,
        nodes: int = 1,
        workers: int = 2,
        settings: Mapping[str, str] = QUICK,
        worker_grace_s: float = 5.0,
        zookeeper: ZookeeperSite | None = None,
        relayed: bool = False,
        secure: bool = False,
    ) -> Cluster: ...


def _direct(place: Place) -> str:
    return f"{LOOPBACK}:{place.own}"
