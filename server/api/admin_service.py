"""AdminService: looking at and steering the cluster."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Final, TypeAlias, TypeVar

import grpc.aio
import orjson
from google.protobuf.message import Message

from server.api.convert import duration, policies_of, retry_message, timeouts_message, timestamp
from server.api.ports import ClusterView, EngineHandle
from server.api.validation import (
    Problems,
    check_handler,
    check_namespace,
    check_note,
    check_retry,
    check_timeouts,
)
from server.store import shards, workers
from server.store.catalog import Catalog, Handler, Namespace
from server.store.database import Database
from server.store.status import MAX_COUNTED, LoadSample, sample_load
from server.store.workers import WorkerRow
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceServicer

# A sample this young is used again, so that a crowd of onlookers costs no more than one.
SAMPLE_LIFE_S: Final = 1.0

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Request, Awaitable[Response]]"


class AdminService(AdminServiceServicer):
    """Serves AdminService on one node."""

    def __init__(
        self,
        *,
        database: Database,
        partition_of: Sequence[int],
        catalog: Catalog,
        engine: EngineHandle,
        cluster: ClusterView,
        node: str,
        version: str,
    ) -> None:
        self._database = database
        self._partition_of = partition_of
        self._catalog = catalog
        self._engine = engine
        self._cluster = cluster
        self._node = node
        self._version = version
        self._sampling = asyncio.Lock()
        self._sample: LoadSample | None = None
        self._sampled_at = 0.0

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: "Context[pb.GetStatusRequest, pb.GetStatusResponse]"
    ) -> pb.GetStatusResponse:
        """Return the state of the cluster as this node sees it."""
        load = await self._load()
        rows = await shards.list_shards(self._database)
        plan = self._cluster.plan()
        leader = self._cluster.leader()
        owned: dict[str, int] = {}
        for row in rows:
            if row.owner:
                owned[row.owner] = owned.get(row.owner, 0) + 1
        oldest = min((one.oldest for one in load.due.values()), default=None)
        return pb.GetStatusResponse(
            answered_by=self._node,
            coordinator=self._cluster.kind,
            leader=leader,
            plan_version=plan.version,
            shard_count=len(self._partition_of),
            nodes=[
                pb.NodeStatus(
                    node=member.node,
                    address=member.address,
                    state=member.state,
                    shard_count=owned.get(member.node, 0),
                    weight=member.weight,
                    leader=member.node == leader,
                )
                for member in sorted(self._cluster.members(), key=lambda member: member.node)
            ],
            shards=[
                pb.ShardStatus(
                    shard=row.shard,
                    epoch=row.epoch,
                    owner=row.owner or "",
                    planned_owner=plan.owners.get(row.shard, ""),
                    acquired_at=timestamp(row.acquired_at) if row.acquired_at and row.owner else None,
                )
                for row in rows
            ],
            worker_count=load.workers,
            due_count=sum(one.count for one in load.due.values()),
            pending_count=load.pending,
            running_count=load.running,
            oldest_due=None if oldest is None else duration(load.now - oldest),
            schedule_count=load.schedules,
            version=self._version,
            now=timestamp(load.now),
        )

    async def ListHandlers(
        self, request: pb.ListHandlersRequest, context: "Context[pb.ListHandlersRequest, pb.ListHandlersResponse]"
    ) -> pb.ListHandlersResponse:
        """List the handlers of a namespace by name."""
        namespace = await self._namespace(request.namespace)
        handlers = await self._catalog.list_handlers(namespace.namespace_id)
        load = await self._load()
        return pb.ListHandlersResponse(handlers=[self._handler(namespace, one, load) for one in handlers])

    async def PauseHandler(
        self, request: pb.PauseHandlerRequest, context: "Context[pb.PauseHandlerRequest, pb.Handler]"
    ) -> pb.Handler:
        """Stop the hand-out of a handler's jobs: no claim that begins after the answer takes one, on whatever node."""
        return await self._set_paused(request.namespace, request.handler, paused=True, note=request.note)

    async def ResumeHandler(
        self, request: pb.ResumeHandlerRequest, context: "Context[pb.ResumeHandlerRequest, pb.Handler]"
    ) -> pb.Handler:
        """Hand out a paused handler's jobs again."""
        return await self._set_paused(request.namespace, request.handler, paused=False)

    async def ListWorkers(
        self, request: pb.ListWorkersRequest, context: "Context[pb.ListWorkersRequest, pb.ListWorkersResponse]"
    ) -> pb.ListWorkersResponse:
        """List the live workers of a namespace by name."""
        namespace = await self._namespace(request.namespace)
        rows = await workers.live(self._database, namespace.namespace_id)
        load = await self._load()
        return pb.ListWorkersResponse(workers=[_worker(row, load) for row in rows])

    async def CreateNamespace(
        self, request: pb.CreateNamespaceRequest, context: "Context[pb.CreateNamespaceRequest, pb.Namespace]"
    ) -> pb.Namespace:
        """Create a namespace, or return it if it exists with the same defaults."""
        problems = Problems()
        if not request.namespace:
            problems.add("namespace", "", "is required")
        check_namespace(problems, request.namespace)
        check_retry(problems, "retry", request.retry)
        check_timeouts(problems, "timeouts", request.timeouts)
        problems.check()
        policies = policies_of(request.retry, request.timeouts)
        return _namespace_message(await self._catalog.create_namespace(request.namespace, policies))

    async def ListNamespaces(
        self,
        request: pb.ListNamespacesRequest,
        context: "Context[pb.ListNamespacesRequest, pb.ListNamespacesResponse]",
    ) -> pb.ListNamespacesResponse:
        """List all namespaces by name."""
        found = await self._catalog.namespaces()
        return pb.ListNamespacesResponse(namespaces=map(_namespace_message, found))

    async def _namespace(self, name: str) -> Namespace:
        problems = Problems()
        name = check_namespace(problems, name)
        problems.check()
        return await self._catalog.namespace(name)

    async def _set_paused(self, namespace: str, handler: str, *, paused: bool, note: str = "") -> pb.Handler:
        problems = Problems()
        check_handler(problems, handler)
        check_note(problems, "note", note)
        namespace = check_namespace(problems, namespace)
        problems.check()
        place = await self._catalog.namespace(namespace)
        changed = await self._catalog.set_paused(place, handler, paused=paused, note=note)
        self._engine.handler_changed(changed.handler_id, paused=paused)
        return self._handler(place, changed, await self._load())

    def _handler(self, namespace: Namespace, handler: Handler, load: LoadSample) -> pb.Handler:
        view = self._engine.handler_view(handler.handler_id)
        due = load.due.get(handler.handler_id)
        return pb.Handler(
            namespace=namespace.name,
            handler=handler.name,
            paused=handler.paused,
            pause_note=handler.pause_note,
            worker_count=view.workers,
            slot_count=view.slots,
            running_count=load.running_by_handler.get(handler.handler_id, 0),
            due_count=min(due.count, MAX_COUNTED) if due else 0,
            oldest_due=duration(load.now - due.oldest) if due else None,
            retry=retry_message(handler.policies),
            timeouts=timeouts_message(handler.policies),
        )

    async def _load(self) -> LoadSample:
        asked_at = time.monotonic()
        async with self._sampling:
            # Whoever waited for the lock takes the sample that was begun after it had asked.
            if self._sample is None or self._sampled_at < asked_at - SAMPLE_LIFE_S:
                begun = time.monotonic()
                self._sample = await sample_load(self._database, max(self._partition_of) + 1)
                self._sampled_at = begun
            return self._sample


def _worker(row: WorkerRow, load: LoadSample) -> pb.Worker:
    slots = orjson.loads(row.handlers)
    return pb.Worker(
        worker=row.name,
        incarnation=row.incarnation,
        handlers=[pb.Worker.HandlerCredit(handler=name, slots=int(slots[name])) for name in sorted(slots)],
        running_count=load.running_by_worker.get(row.worker_id, 0),
        started_at=timestamp(row.started_at),
        lease_until=timestamp(row.lease_until),
        sdk=row.sdk,
    )


def _namespace_message(namespace: Namespace) -> pb.Namespace:
    return pb.Namespace(
        namespace=namespace.name,
        retry=retry_message(namespace.policies),
        timeouts=timeouts_message(namespace.policies),
        created_at=timestamp(namespace.created_at),
    )
