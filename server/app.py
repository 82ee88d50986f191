"""The composition root: from settings to a running node."""

import asyncio
import contextlib
import logging
from functools import partial
from importlib import metadata
from typing import Final

from server.api.activity import ClusterActivity, NodeActivity
from server.api.admin_orders import AdminOrders
from server.api.admin_service import AdminService
from server.api.admin_status import Answering
from server.api.attempt_calls import AttemptCalls
from server.api.doctor import Doctor
from server.api.job_service import JobService
from server.api.leader_call import LeaderCall
from server.api.peer_service import PeerService
from server.api.quota_keeper import QuotaKeeper
from server.api.schedule_service import ScheduleNudges, ScheduleService
from server.api.server import ApiServer
from server.api.submitter import Submitter
from server.api.tokens import TokenAdmin
from server.api.validation import Limits
from server.api.worker_service import WorkerService
from server.cluster_orders import ManagerOrders
from server.cluster_view import ManagerClusterView
from server.config import NodeConfig
from server.coordination import check_coordinator, coordinator_place, open_coordinator
from server.database_watch import INTERVAL_S as LOOK_EVERY_S
from server.database_watch import DatabaseWatch
from server.domain.policies import SERVER_DEFAULTS
from server.engine.claimer import LATENESS_BOUNDS_S
from server.engine.engine import Engine
from server.engine.loops import every
from server.known_errors import known_errors
from server.maintenance import EVERY, Maintenance
from server.manager_observer import ManagerObserver
from server.node_access import NodeAccess
from server.node_health import NodeHealth, Phase
from server.node_http import NodeHttp
from server.node_metrics import NodeCollector
from server.observe.activity import LOOK_EVERY_S as COUNTERS_EVERY_S
from server.observe.activity import ActivityLog, engine_counts
from server.observe.engine_metrics import EngineCollector
from server.observe.load_metrics import LoadMetrics
from server.observe.loop_lag import LoopLag
from server.observe.metrics import Metrics
from server.observe.publish_metrics import PublishCollector
from server.observe.tracing import NodeTracing, open_tracing
from server.peers.channels import PeerChannels
from server.peers.cluster_peers import ClusterPeers
from server.publishing import Publishing, open_publisher
from server.shard_host import EngineShardHost
from server.startup import patiently, until_joined
from server.store import shards, workers
from server.store.catalog import Catalog
from server.store.database import Database
from server.store.engine_store import PostgresEngineStore
from server.store.horizon import oldest_holders
from server.store.insert import IdBlock
from server.store.load_sampler import LoadSampler
from server.store.migrate import check_schema
from server.store.partitions import Retention
from server.store.schedule_firing import FiringStore
from server.store.submit_function import publish_settings
from server.web.calls import Services
from server.web.dashboard import Dashboard
from server.web.doorkeeper import TokenDoor
from shard_manager.coordinator import Member
from shard_manager.incarnation import IncarnationFile
from shard_manager.manager import ShardManager
from shard_manager.timings import ManagerTimings

log = logging.getLogger(__name__)

# How often a node looks for handlers that were paused, resumed or registered elsewhere.
CATALOG_REFRESH_S: Final = 1.0
# How often a node looks whether nodes have come or gone, to tell the workers.
MEMBERS_REFRESH_S: Final = 0.5
# How often nodes tell each other how much is submitted through them, as far as a quota limits it.
QUOTAS_S: Final = 1.0
STOP_GRACE_S: Final = 1.0


class LoopEnded(Exception):
    """A loop that a node cannot do without has ended; the log says why."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the loop {name!r} has ended")


class Node:
    """One scheduler process. `start`, then `stop`; between them it serves."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.address = ""
        """Where the node listens, known once it has started."""
        self.metrics = Metrics(node=config.node, version=metadata.version("shardwheel"))
        lag = LoopLag(self.metrics.loop_lag.observe)
        self.health = NodeHealth(config.node, lag)
        self.access = NodeAccess(config)
        self.http = NodeHttp(config.http_listen, self.health, self.metrics, lag, self.access)
        self.tracing: NodeTracing | None = None
        self._observer = ManagerObserver(self.metrics)
        self._broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve, once the database and the coordinator are there: as long as one is merely away, this waits.

        What can never work is raised, with words for people: `AccessDenied`, `SchemaMismatch`, `InvalidInput`,
        `OtherCoordinator`, or `ShardManagerError`. Nothing is left behind then, nor if this is cancelled.
        """
        check_coordinator(self.config)
        self.incarnation = IncarnationFile(self.config.data_dir / f"{self.config.node}.incarnation")
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self.incarnation.close)
            stack.push_async_callback(self.http.stop)
            await self.http.start()
            await self._connect(stack)
            self._build()
            # From here on there is something to wind up.
            stack.pop_all()
        try:
            await self._serve()
        except BaseException:
            await self.stop()
            raise
        log.info(
            "node started",
            extra={"node": self.config.node, "address": self.address, "shards": len(self._partition_of)},
        )

    async def _connect(self, stack: contextlib.AsyncExitStack) -> None:
        config = self.config
        database, waits_for = "the database", self._waits_for
        shards, partitions = await patiently(database, partial(check_schema, config.database), waits_for)
        self._partition_of = [shard // (shards // partitions) for shard in range(shards)]
        self.database = Database(
            config.database, hot_connections=config.hot_connections, api_connections=config.api_connections
        )
        stack.push_async_callback(self.database.close)
        await patiently(database, self.database.open, waits_for)
        publish = partial(
            publish_settings, self.database, max_payload_bytes=config.max_payload_bytes, defaults=SERVER_DEFAULTS
        )
        await patiently(database, publish, waits_for)
        await patiently(database, partial(self.access.open, self.database), waits_for)
        self.coordinator = await patiently(
            "the coordinator", partial(open_coordinator, config, self.database), waits_for
        )

    async def _serve(self) -> None:
        await patiently("the database", self.publishing.load, self._waits_for)
        self.engine.start()
        await self.server.start()
        self._tasks = self._loops()
        for task in self._tasks:
            self.watch_loop(task)
        self.health.loops = self._tasks
        await until_joined(self.manager.status, lambda: self._observer.trouble, self._waits_for)
        self.health.phase = Phase.SERVING
        await self.server.set_serving(True)

    def _waits_for(self, what: str) -> None:
        self.health.waits_for = what

    def watch_loop(self, task: asyncio.Task[None]) -> None:
        """The node cannot do without this task: it ends when the task does."""
        task.add_done_callback(self._loop_ended)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.health.phase is Phase.STOPPING:
            return
        error = LoopEnded(task.get_name())
        log.error("a loop has ended", extra={"loop": task.get_name()}, exc_info=task.exception())
        self._break(error)

    def _break(self, error: Exception) -> None:
        """Note that the node cannot go on; whoever runs it stops it."""
        if not self._broken.done():
            self._broken.set_result(error)

    async def until_broken(self) -> None:
        """Wait until the node cannot go on, and raise why: `LoopEnded`, or `OtherCoordinator`."""
        raise await asyncio.shield(self._broken)

    async def stop(self) -> None:
        """Stop without losing anything: give the shards away, store results under way, then close."""
        self.health.phase = Phase.STOPPING
        await self.server.set_serving(False)
        await self.manager.drain()
        await self.engine.drain(self.config.drain_grace)
        if self._publisher is not None:
            await self._publisher.stop(self.config.drain_grace.total_seconds())
        await self.engine.stop()
        await self.server.stop(STOP_GRACE_S)
        await self.jobs.close()
        await self.submitter.close()
        await self.peers.close()
        await self.channels.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.database.close()
        if self.tracing is not None:
            await self.tracing.close()
        await self.http.stop()
        self.incarnation.close()
        log.info("node stopped", extra={"node": self.config.node})

    def _build(self) -> None:
        config = self.config
        self.catalog = Catalog(self.database)
        self._sampler = LoadSampler(self.database, max(self._partition_of) + 1)
        self.store = PostgresEngineStore(self.database, node=config.node, incarnation=self.incarnation.current)
        firing = FiringStore(self.database, IdBlock(self.database))
        self.cluster = ManagerClusterView(lambda: self.manager.status(), config.coordinator)
        self.channels = PeerChannels(
            config.node,
            self._addresses,
            credentials=self.access.channel_credentials,
            authorization=self.access.authorization,
        )
        self.peers = ClusterPeers(config.node, self.channels, lambda shard: self.manager.planned_owner(shard))
        self.engine = Engine(self.store, firing, self._partition_of, config.timings(), self.peers)
        self.activity_log = ActivityLog(lambda: engine_counts(self.engine), self.engine.clock.now)
        self._activity = NodeActivity(config.node, self.activity_log, LATENESS_BOUNDS_S, self.engine.clock.ahead)
        self._publisher = open_publisher(config, self.engine.give_back, self.engine.claimer.wake)
        self.publishing = Publishing(self.engine, self.catalog, self._publisher)
        self._handlers_changed = asyncio.Event()
        self.engine.news.handlers_changed = self._handlers_changed.set
        self.submitter = Submitter(self.database, self._partition_of, self.engine)
        self.quotas = QuotaKeeper(
            self.database, self._partition_of, node=config.node, nodes=lambda: len(self.cluster.members())
        )
        self.jobs = JobService(
            database=self.database,
            partition_of=self._partition_of,
            catalog=self.catalog,
            engine=self.engine,
            submitter=self.submitter,
            owners=self.peers,
            quotas=self.quotas,
            limits=self._limits(),
        )
        self.peers.watched = self.jobs.watched
        self._trace()
        self.engine.liveness.alone = lambda: self.cluster.leader() == config.node and len(self.cluster.members()) == 1
        self.workers = self._worker_service()
        schedules, admin = self._schedule_service(), self._admin_service()
        self.server = ApiServer(
            [self.jobs, schedules, self.workers, admin, self._peer_service()],
            gate=self.access.gate,
            observer=self.metrics.call_ended,
        )
        port = self.server.bind(config.listen, self.access.server_credentials)
        self.address = f"{config.listen.rpartition(':')[0]}:{port}"
        self.manager = self._shard_manager()
        self.engine.ownership.on_fenced = self.manager.fenced
        self.metrics.registry.register(EngineCollector(self.engine, self.database.pools, self.peers.news_counts))
        if self._publisher is not None:
            self.metrics.registry.register(PublishCollector(self._publisher))
        self.metrics.registry.register(NodeCollector(self.health, self.manager.status))
        load = LoadMetrics(
            self._sampler, lambda: self.cluster.leader() == config.node, partial(oldest_holders, self.database)
        )
        self.metrics.registry.register(load)
        self.http.before_page = load.refresh
        services = Services(jobs=self.jobs, schedules=schedules, admin=admin)
        self.http.show(Dashboard(node=config.node, services=services, doorkeeper=TokenDoor(self.access.gate)))
        self._watch_health()

    def _trace(self) -> None:
        if self.config.otlp_endpoint:
            self.tracing = open_tracing(
                self.config.otlp_endpoint,
                node=self.config.node,
                version=metadata.version("shardwheel"),
                handler_name=self.catalog.known_name,
            )
            self.engine.claimer.trace = self.submitter.trace = self.tracing

    def _watch_health(self) -> None:
        self._database_watch = DatabaseWatch(
            self.database,
            place=coordinator_place(self.config),
            fit=self.manager.set_healthy,
            replaced=self._break,
        )
        self.health.database = self._database_watch
        self.health.manager = self.manager.status
        self.health.owned = lambda: self.engine.ownership.epochs

    def _limits(self) -> Limits:
        return Limits(payload_bytes=self.config.max_payload_bytes)

    def _retention(self) -> Retention:
        return Retention(completed=self.config.keep_completed, unsuccessful=self.config.keep_unsuccessful)

    def _advertised(self) -> str:
        return self.config.advertise or self.address

    def _addresses(self) -> dict[str, str]:
        """Where the live nodes are reached, by name; this one included."""
        return {one.node: one.address for one in self.cluster.members()}

    def _schedule_service(self) -> ScheduleService:
        return ScheduleService(
            database=self.database,
            catalog=self.catalog,
            ids=IdBlock(self.database),
            partition_of=self._partition_of,
            nudges=ScheduleNudges(changed=self.engine.schedule_changed, jobs_added=self.engine.jobs_added),
            now=self.engine.clock.now,
            quotas=self.quotas,
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
            attempts=AttemptCalls(
                engine=self.engine,
                database=self.database,
                catalog=self.catalog,
                max_result_bytes=self.config.max_result_bytes,
            ),
        )

    def _admin_service(self) -> AdminService:
        node, cluster = self.config.node, self.cluster
        answering = Answering(node=node, version=metadata.version("shardwheel"), cluster=cluster)
        activity = ClusterActivity(self._activity, self.peers, self.engine.clock.now)
        return AdminService(
            database=self.database,
            partition_of=self._partition_of,
            catalog=self.catalog,
            engine=self.engine,
            publishing=self.publishing,
            answering=answering,
            orders=AdminOrders(
                node=node,
                cluster=cluster,
                orders=ManagerOrders(lambda: self.manager),
                leader=LeaderCall(node, cluster, self.channels),
            ),
            activity=activity,
            doctor=Doctor(
                database=self.database,
                partitions=max(self._partition_of) + 1,
                catalog=self.catalog,
                clock=self.engine.clock,
                answering=answering,
                activity=activity,
                sampler=self._sampler,
                retention=self._retention(),
                connections=self.config.hot_connections + self.config.api_connections,
            ),
            tokens=TokenAdmin(self.database, self.access.keyring),
        )

    def _peer_service(self) -> PeerService:
        return PeerService(
            engine=self.engine, news=self.engine.news, shards=len(self._partition_of), activity=self._activity
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
            clock=self.engine.clock.now,
            observer=self._observer,
            last_owners=partial(shards.last_owners, self.database),
        )

    async def _refresh_catalog(self) -> None:
        for handler in await self.catalog.refresh():
            self.engine.handler_seen(handler.handler_id, paused=handler.paused)
            await self.publishing.seen(handler)

    async def _count(self) -> None:
        self.activity_log.look()

    def _loops(self) -> list[asyncio.Task[None]]:
        maintenance = Maintenance(self.database, self._retention())
        loops = {
            "shard-manager": self.manager.run(),
            "maintenance": every(EVERY.total_seconds(), "maintenance", known_errors(maintenance.run_once)),
            "members": every(MEMBERS_REFRESH_S, "members", self.workers.tell_members),
            "channels": every(MEMBERS_REFRESH_S, "channels", self.channels.refresh),
            "activity": every(COUNTERS_EVERY_S, "activity", self._count),
            "database-watch": every(LOOK_EVERY_S, "database watch", self._database_watch.look),
            "catalog": every(
                CATALOG_REFRESH_S, "catalog", known_errors(self._refresh_catalog), wake=self._handlers_changed
            ),
            "quotas": every(QUOTAS_S, "quotas", known_errors(self.quotas.exchange)),
            **self.access.loops(),
        }
        if self._publisher is not None:
            loops["publisher"] = self._publisher.run()
        return [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
