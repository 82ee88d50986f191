"""The composition root: from settings to a running node."""

import asyncio
import logging
from functools import partial

import grpc

from server.api.worker_service import WorkerService
from server.config import NodeConfig
from server.engine.engine import Engine
from server.engine.loops import every
from server.maintenance import EVERY, Maintenance
from server.shard_host import EngineShardHost
from server.store import workers
from server.store.catalog import Catalog
from server.store.database import Database
from server.store.engine_store import PostgresEngineStore
from server.store.migrate import check_schema
from server.store.partitions import Retention
from shard_manager.coordinator import Member
from shard_manager.incarnation import IncarnationFile
from shard_manager.manager import ShardManager
from shard_manager.postgres import PostgresCoordinator
from shard_manager.timings import ManagerTimings
from shardwheel.v1 import worker_service_pb2_grpc

log = logging.getLogger(__name__)


class Node:
    """One scheduler process. `start`, then `stop`; between them it serves."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.address = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Raises `SchemaMismatch`, `Unavailable` or `InvalidInput` with words for people if it cannot."""
        config = self.config
        shards, partitions = await check_schema(config.database)
        self.incarnation = IncarnationFile(config.data_dir / f"{config.node}.incarnation")
        self.database = Database(
            config.database, hot_connections=config.hot_connections, api_connections=config.api_connections
        )
        await self.database.open()
        self.catalog = Catalog(self.database)
        self.store = PostgresEngineStore(self.database, node=config.node, incarnation=self.incarnation.current)
        partition_of = [shard // (shards // partitions) for shard in range(shards)]
        self.engine = Engine(self.store, partition_of, config.timings())
        self.server = grpc.aio.server()
        port = self.server.add_insecure_port(config.listen)
        host = config.listen.rpartition(":")[0]
        self.address = f"{host}:{port}"
        self._add_services()
        self.manager = self._manager(shards)
        self.engine.ownership.on_fenced = self.manager.fenced
        self.engine.start()
        await self.server.start()
        retention = Retention(completed=config.keep_completed, unsuccessful=config.keep_unsuccessful)
        maintenance = Maintenance(self.database, retention)
        loops = {
            "shard-manager": self.manager.run(),
            "maintenance": every(EVERY.total_seconds(), "maintenance", maintenance.run_once),
            "catalog": every(1.0, "catalog", self._refresh_catalog),
        }
        self._tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
        log.info("node started", extra={"node": config.node, "address": self.address, "shards": shards})

    async def stop(self) -> None:
        """Stop without losing anything: give the shards away, store results under way, then close."""
        grace = self.config.drain_grace
        await self.manager.drain()
        await self.engine.drain(grace)
        await self.engine.stop()
        await self.server.stop(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.database.close()
        self.incarnation.close()
        log.info("node stopped", extra={"node": self.config.node})

    def _add_services(self) -> None:
        service = WorkerService(
            engine=self.engine,
            catalog=self.catalog,
            keep_lease=partial(workers.keep, self.database),
            node=self.config.node,
            address=self.config.advertise or self.address,
            max_result_bytes=self.config.max_result_bytes,
        )
        worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(service, self.server)

    def _manager(self, shards: int) -> ShardManager:
        config = self.config
        member = Member(
            node=config.node,
            incarnation=self.incarnation.current,
            address=config.advertise or self.address,
        )
        return ShardManager(
            PostgresCoordinator(config.database),
            EngineShardHost(self.engine.shards, self.store),
            member=member,
            shards=shards,
            replaces=self.incarnation.replaces,
            timings=ManagerTimings.for_session(config.session_ttl),
        )

    async def _refresh_catalog(self) -> None:
        for handler in await self.catalog.refresh():
            self.engine.handler_changed(handler.handler_id, paused=handler.paused)
