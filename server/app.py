"""The composition root: from settings to a running node."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import metadata
from typing import Final

from server.api.admin_service import AdminService
from server.api.job_service import JobService
from server.api.schedule_service import ScheduleNudges, ScheduleService
from server.api.server import ApiServer
from server.api.submitter import Submitter
from server.api.validation import Limits
from server.api.worker_service import WorkerService
from server.cluster_view import ManagerClusterView
from server.config import NodeConfig
from server.coordination import check_coordinator, open_coordinator
from server.engine.engine import Engine
from server.engine.loops import every
from server.engine.ports import OutcomeUnknown, StoreUnavailable
from server.maintenance import EVERY, Maintenance
from server.peers.channels import PeerChannels
from server.shard_host import EngineShardHost
from server.store import workers
from server.store.catalog import Catalog
from server.store.database import Database
from server.store.engine_store import PostgresEngineStore
from server.store.errors import Unavailable, UnknownOutcome
from server.store.insert import IdBlock
from server.store.migrate import check_schema
from server.store.partitions import Retention
from server.store.schedule_firing import FiringStore
from shard_manager.coordinator import Member
from shard_manager.incarnation import IncarnationFile
from shard_manager.manager import ShardManager
from shard_manager.timings import ManagerTimings

log = logging.getLogger(__name__)

# How often a node looks for handlers that were paused, resumed or registered elsewhere.
CATALOG_REFRESH_S: Final = 1.0
# How often a node looks whether nodes have come or gone, to tell the workers.
MEMBERS_REFRESH_S: Final = 0.5
STOP_GRACE_S: Final = 1.0


class Node:
    """One scheduler process. `start`, then `stop`; between them it serves."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.address = ""
        """Where the node listens, known once it has started."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Raises `SchemaMismatch`, `Unavailable`, `InvalidInput`, or `ShardManagerError`, with words for people,
        if it cannot."""
        config = self.config
        check_coordinator(config)
        shards, partitions = await check_schema(config.database)
        self._partition_of = [shard // (shards // partitions) for shard in range(shards)]
        self.incarnation = IncarnationFile(config.data_dir / f"{config.node}.incarnation")
        self.database = Database(
            config.database, hot_connections=config.hot_connections, api_connections=config.api_connections
        )
        try:
            await self.database.open()
            self.coordinator = await open_coordinator(config, self.database)
            self._build()
        except BaseException:
            await self.database.close()
            self.incarnation.close()
            raise
        self.engine.start()
        await self.server.start()
        self._tasks = self._loops()
        await self.server.set_serving(True)
        log.info("node started", extra={"node": config.node, "address": self.address, "shards": shards})

    async def stop(self) -> None:
        """Stop without losing anything: give the shards away, store results under way, then close."""
        await self.server.set_serving(False)
        await self.manager.drain()
        await self.engine.drain(self.config.drain_grace)
        await self.engine.stop()
        await self.server.stop(STOP_GRACE_S)
        await self.channels.close()
        await self.jobs.close()
        await self.submitter.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.database.close()
        self.incarnation.close()
        log.info("node stopped", extra={"node": self.config.node})

    def _build(self) -> None:
        config = self.config
        self.catalog = Catalog(self.database)
        self.store = PostgresEngineStore(self.database, node=config.node, incarnation=self.incarnation.current)
        firing = FiringStore(self.database, IdBlock(self.database))
        self.engine = Engine(self.store, firing, self._partition_of, config.timings())
        self.submitter = Submitter(self.database, self._partition_of, self.engine)
        self.jobs = JobService(
            database=self.database,
            partition_of=self._partition_of,
            catalog=self.catalog,
            engine=self.engine,
            submitter=self.submitter,
            limits=self._limits(),
        )
        self.cluster = ManagerClusterView(lambda: self.manager.status(), config.coordinator)
        self.engine.liveness.alone = lambda: self.cluster.leader() == config.node and len(self.cluster.members()) == 1
        self.channels = PeerChannels(config.node, self._addresses)
        self.workers = self._worker_service()
        self.server = ApiServer([self.jobs, self._schedule_service(), self.workers, self._admin_service()])
        port = self.server.bind(config.listen)
        self.address = f"{config.listen.rpartition(':')[0]}:{port}"
        self.manager = self._shard_manager()
        self.engine.ownership.on_fenced = self.manager.fenced

    def _limits(self) -> Limits:
        return Limits(payload_bytes=self.config.max_payload_bytes)

    def _advertised(self) -> str:
        return self.config.advertise or self.address

    def _addresses(self) -> dict[str, str]:
        """Where the live nodes are reached, by name; this one included."""
        return {one.node: one.address for one in self.cluster.members()}

    def _schedule_service(self) -> ScheduleService:
        firer = self.engine.firer
        return ScheduleService(
            database=self.database,
            catalog=self.catalog,
            ids=IdBlock(self.database),
            partition_of=self._partition_of,
            nudges=ScheduleNudges(changed=firer.schedules_changed, jobs_added=self.engine.jobs_added),
            now=self.engine.clock.now,
            limits=self._limits(),
        )

    def _worker_service(self) -> WorkerService:
        return WorkerService(
            engine=self.engine,
            catalog=self.catalog,
            keep_lease=partial(workers.keep, self.database),
            node=self.config.node,
            members=self._addresses,
            max_result_bytes=self.config.max_result_bytes,
        )

    def _admin_service(self) -> AdminService:
        return AdminService(
            database=self.database,
            partition_of=self._partition_of,
            catalog=self.catalog,
            engine=self.engine,
            cluster=self.cluster,
            node=self.config.node,
            version=metadata.version("shardwheel"),
        )

    def _shard_manager(self) -> ShardManager:
        config = self.config
        return ShardManager(
            self.coordinator,
            EngineShardHost(self.engine.shards, self.store),
            member=Member(node=config.node, incarnation=self.incarnation.current, address=self._advertised()),
            shards=len(self._partition_of),
            replaces=self.incarnation.replaces,
            timings=ManagerTimings.for_session(config.session_ttl),
        )

    async def _refresh_catalog(self) -> None:
        for handler in await self.catalog.refresh():
            self.engine.handler_changed(handler.handler_id, paused=handler.paused)

    def _loops(self) -> list[asyncio.Task[None]]:
        retention = Retention(completed=self.config.keep_completed, unsuccessful=self.config.keep_unsuccessful)
        maintenance = Maintenance(self.database, retention)
        loops = {
            "shard-manager": self.manager.run(),
            "maintenance": every(EVERY.total_seconds(), "maintenance", _step(maintenance.run_once)),
            "members": every(MEMBERS_REFRESH_S, "members", self.workers.tell_members),
            "channels": every(MEMBERS_REFRESH_S, "channels", self.channels.refresh),
            "catalog": every(CATALOG_REFRESH_S, "catalog", _step(self._refresh_catalog)),
        }
        return [asyncio.create_task(loop, name=name) for name, loop in loops.items()]


def _step(work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Return `work` with errors that a loop knows: it waits for an absent database without a traceback each time."""

    async def step() -> None:
        try:
            await work()
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from error
        except UnknownOutcome as error:
            raise OutcomeUnknown(str(error)) from error

    return step
