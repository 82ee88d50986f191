"""A node's API on a real database and a real socket, with the smallest engine that keeps the protocol."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from server.api.activity import ClusterActivity, NodeActivity
from server.api.admin_orders import AdminOrders
from server.api.admin_service import AdminService
from server.api.admin_status import Answering
from server.api.doctor import Doctor
from server.api.job_service import JobService
from server.api.leader_call import LeaderCall
from server.api.ports import MemberView, PlanView
from server.api.server import ApiServer
from server.api.submitter import SubmitLimits, Submitter
from server.api.tokens import TokenAdmin
from server.api.validation import Limits
from server.cluster_orders import ManagerOrders
from server.domain.due import NO_BOUND, DueJob, Probe
from server.domain.ending import Ended
from server.domain.handler import HandlerView
from server.domain.job import AttemptRef, ClaimedJob, JobState
from server.domain.outcome import Finish, Requeue
from server.engine.clock import DatabaseClock
from server.observe.activity import ActivityLog, Counts
from server.peers.channels import PeerChannels
from server.peers.cluster_peers import ClusterPeers
from server.store import claim, finish, workers
from server.store.catalog import Catalog, Handler
from server.store.database import Database
from server.store.load_sampler import LoadSampler
from server.store.partitions import Retention
from server.store.shards import fence_in
from shard_manager.errors import NotLeader
from shard_manager.steering import Given, PlanChange
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub
from shardwheel.v1.job_service_pb2_grpc import JobServiceStub
from tests.support.access import open_gate

SHARDS = 64
PARTITION_OF = [shard // 4 for shard in range(SHARDS)]
NODE = "node-1"


class Waiter:
    """Woken by `QuietEngine.job_finished`."""

    def __init__(self, waiters: set["Waiter"], job_id: int) -> None:
        self._waiters = waiters
        self.job_id = job_id
        self.ended = asyncio.Event()
        waiters.add(self)

    async def wait(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self.ended.wait(), timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._waiters.discard(self)


@dataclass
class QuietEngine:
    """Owns what it is told, remembers what it was told, wakes waiters, and runs nothing."""

    owned: list[int] = field(default_factory=list)
    added: list[DueJob] = field(default_factory=list)
    cancels: list[tuple[AttemptRef, int]] = field(default_factory=list)
    pauses: list[tuple[int, bool]] = field(default_factory=list)
    views: dict[int, HandlerView] = field(default_factory=dict)
    waiters: set[Waiter] = field(default_factory=set)
    freed: list[tuple[int, int, str]] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    published_ended: list[AttemptRef] = field(default_factory=list)

    def jobs_added(self, jobs: Sequence[DueJob]) -> None:
        self.added.extend(jobs)

    def owned_shards(self) -> Sequence[int]:
        return self.owned

    def key_freed(self, shard: int, namespace_id: int, key: str) -> None:
        self.freed.append((shard, namespace_id, key))

    def watch(self, job_id: int) -> None:
        self.watched.append(job_id)

    def handler_view(self, handler_id: int) -> HandlerView:
        return self.views.get(handler_id, HandlerView(workers=0, slots=0, free=0))

    def handler_changed(self, handler_id: int, *, paused: bool) -> None:
        self.pauses.append((handler_id, paused))

    def cancel_requested(self, ref: AttemptRef, worker_id: int) -> None:
        self.cancels.append((ref, worker_id))

    def job_finished(self, job_id: int) -> None:
        for waiter in self.waiters:
            if waiter.job_id == job_id:
                waiter.ended.set()

    def published_job_ended(self, ref: AttemptRef) -> None:
        self.published_ended.append(ref)

    def waiter(self, job_id: int) -> Waiter:
        return Waiter(self.waiters, job_id)


class NoKafka:
    """Publishes nothing, and remembers what it was told."""

    def __init__(self) -> None:
        self.available = False
        self.told: list[Handler] = []

    async def changed(self, handler: Handler) -> None:
        self.told.append(handler)


class OneNode:
    """A cluster of one node."""

    kind = "postgres"

    def members(self) -> Sequence[MemberView]:
        return [MemberView(node=NODE, address="127.0.0.1:7400", state="up", weight=1)]

    def __init__(self, leader: str = NODE) -> None:
        self._leader = leader

    def leader(self) -> str:
        return self._leader

    def plan(self) -> PlanView:
        return PlanView(version=3, owners=dict.fromkeys(range(SHARDS), NODE))

    def trouble(self) -> str:
        return ""


class NoManager:
    """Stands where a node without a coordinator has its shard manager: it leads nobody."""

    async def order(self, given: Given) -> PlanChange:
        raise NotLeader(NODE, None)

    async def end_session_of(self, node: str) -> bool:
        return False


def _now() -> datetime:
    return datetime.now(UTC)


class ApiNode:
    """The parts of a node's API, put together as the node does it."""

    def __init__(
        self,
        dsn: str,
        *,
        limits: Limits | None = None,
        submit_limits: SubmitLimits | None = None,
        max_handlers: int = 10_000,
        leader: str = NODE,
    ) -> None:
        self.database = Database(dsn, hot_connections=2, api_connections=6)
        self.engine = QuietEngine()
        self.publishing = NoKafka()
        self.catalog = Catalog(self.database, max_handlers=max_handlers)
        self.submitter = Submitter(self.database, PARTITION_OF, self.engine, submit_limits)
        self.job_service = JobService(
            database=self.database,
            partition_of=PARTITION_OF,
            catalog=self.catalog,
            engine=self.engine,
            submitter=self.submitter,
            limits=limits,
        )
        cluster = OneNode(leader)
        gate = open_gate()
        self.channels = PeerChannels(NODE, dict)
        answering = Answering(node=NODE, version="0.1.0", cluster=cluster)
        activity = ClusterActivity(
            NodeActivity(NODE, ActivityLog(Counts, _now), [], DatabaseClock().ahead),
            ClusterPeers(NODE, self.channels, lambda shard: None),
            _now,
        )
        self.admin_service = AdminService(
            database=self.database,
            partition_of=PARTITION_OF,
            catalog=self.catalog,
            engine=self.engine,
            publishing=self.publishing,
            answering=answering,
            orders=AdminOrders(
                node=NODE,
                cluster=cluster,
                orders=ManagerOrders(NoManager),
                leader=LeaderCall(NODE, cluster, self.channels),
            ),
            activity=activity,
            doctor=Doctor(
                database=self.database,
                partitions=max(PARTITION_OF) + 1,
                catalog=self.catalog,
                clock=DatabaseClock(),
                answering=answering,
                activity=activity,
                sampler=LoadSampler(self.database, max(PARTITION_OF) + 1),
                retention=Retention(),
                connections=8,
            ),
            tokens=TokenAdmin(self.database, gate.keyring),
        )
        self.calls: list[tuple[str, str, float]] = []
        self.server = ApiServer(
            [self.job_service, self.admin_service],
            gate=gate,
            observer=lambda method, code, seconds: self.calls.append((method, code, seconds)),
        )
        self.address = ""

    async def __aenter__(self) -> Self:
        await self.database.open()
        self.address = f"127.0.0.1:{self.server.bind('127.0.0.1:0')}"
        await self.server.start()
        await self.server.set_serving(True)
        self.channel = grpc.aio.insecure_channel(self.address)
        self.jobs = JobServiceStub(self.channel)
        self.admin = AdminServiceStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(1.0)
        await self.channels.close()
        await self.job_service.close()
        await self.submitter.close()
        await self.database.close()


class Fleet:
    """Owns all shards at some epoch and stands for a worker: claims and ends attempts with the real statements."""

    def __init__(self, database: Database, worker_id: int, epochs: Mapping[int, int]) -> None:
        self.database = database
        self.worker_id = worker_id
        self.epochs = epochs

    @classmethod
    async def start(cls, database: Database, *, worker: str = "worker-1", handlers: bytes = b"{}") -> Self:
        epochs = await fence_in(database, [(shard, 1, 1) for shard in range(SHARDS)], NODE, 7)
        lease = timedelta(minutes=1)
        admission = await workers.admit(database, 1, worker, 1, "python/0.1.0", handlers, lease)
        assert admission.worker_id is not None
        return cls(database, admission.worker_id, epochs)

    async def claim(self, handler_id: int, count: int = 10) -> list[ClaimedJob]:
        """Claim up to `count` due jobs per shard."""
        found = []
        for partition in range(max(PARTITION_OF) + 1):
            shards = [shard for shard in range(SHARDS) if PARTITION_OF[shard] == partition]
            probes = [Probe(shard, handler_id, [self.worker_id] * count, [NO_BOUND] * 5) for shard in shards]
            epochs = [(shard, self.epochs[shard]) for shard in shards]
            found += (await claim.claim(self.database, partition, epochs, probes)).jobs
        return found

    async def finish(self, ref: AttemptRef, state: JobState = JobState.COMPLETED, **fields: object) -> list[Ended]:
        """End an attempt for good."""
        one = Finish(ref=ref, state=state, **fields)  # type: ignore[arg-type]
        return await finish.finish(self.database, PARTITION_OF[ref.job_id & 4095], [one])

    async def requeue(self, ref: AttemptRef, delay: timedelta, **fields: object) -> list[Ended]:
        """Give an attempt back for a later try."""
        one = Requeue(ref=ref, delay=delay, burn=True, **fields)  # type: ignore[arg-type]
        return await finish.requeue(self.database, PARTITION_OF[ref.job_id & 4095], [one])


@dataclass(frozen=True)
class Refusal:
    """What a client sees of an error."""

    code: grpc.StatusCode
    message: str
    reason: str
    domain: str
    metadata: dict[str, str]
    fields: dict[str, str]
    retry_after_s: float | None


def refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """Read the details of an error as a client does."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None, f"no details: {error}"
    info = error_details_pb2.ErrorInfo()
    bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    seen = {detail.type_url.rpartition(".")[2]: detail for detail in status.details}
    assert "ErrorInfo" in seen
    seen["ErrorInfo"].Unpack(info)
    if "BadRequest" in seen:
        seen["BadRequest"].Unpack(bad)
    if "RetryInfo" in seen:
        seen["RetryInfo"].Unpack(retry)
    return Refusal(
        code=error.code(),
        message=error.details() or "",
        reason=info.reason,
        domain=info.domain,
        metadata=dict(info.metadata),
        fields={violation.field: violation.description for violation in bad.field_violations},
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if "RetryInfo" in seen else None,
    )


@asynccontextmanager
async def refused(code: grpc.StatusCode) -> AsyncIterator[list[Refusal]]:
    """Expect one call inside to be refused with `code`; its refusal is in the list afterwards."""
    found: list[Refusal] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield found
    assert caught.value.code() is code, caught.value
    found.append(refusal(caught.value))
