"""AdminService: looking at and steering the cluster."""

from collections.abc import Awaitable, Sequence
from typing import Final, TypeAlias, TypeVar

import grpc.aio
import orjson
from google.protobuf.message import Message

from server.api.activity import ClusterActivity
from server.api.admin_orders import AdminOrders
from server.api.admin_status import Answering, status_message
from server.api.convert import duration, policies_of, retry_message, timeouts_message, timestamp
from server.api.dispatch_request import DispatchRequest, dispatch_message
from server.api.doctor import Doctor
from server.api.errors import WrongState
from server.api.ports import EngineHandle, HandlerPublishing
from server.api.quotas import changed_quotas, check_quotas, quotas_message, quotas_of
from server.api.tokens import TokenAdmin
from server.api.validation import (
    Problems,
    check_handler,
    check_namespace,
    check_note,
    check_retry,
    check_timeouts,
)
from server.domain.dispatch import DispatchMode
from server.store import shards, workers
from server.store.catalog import Catalog, Handler, Namespace
from server.store.database import Database
from server.store.load_sampler import LoadSampler
from server.store.status import MAX_COUNTED, LoadSample
from server.store.workers import WorkerRow
from shardwheel.v1 import admin_service_pb2 as pb
from shardwheel.v1.activity_pb2 import Activity
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceServicer
from shardwheel.v1.diagnosis_pb2 import Diagnosis

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
        publishing: HandlerPublishing,
        answering: Answering,
        orders: AdminOrders,
        activity: ClusterActivity,
        doctor: Doctor,
        tokens: TokenAdmin,
    ) -> None:
        self._database = database
        self._partition_of = partition_of
        self._catalog = catalog
        self._engine = engine
        self._publishing = publishing
        self._answering = answering
        self._orders = orders
        self._activity = activity
        self._doctor = doctor
        self._tokens = tokens
        self._sampler = LoadSampler(database, max(partition_of) + 1)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: "Context[pb.GetStatusRequest, pb.GetStatusResponse]"
    ) -> pb.GetStatusResponse:
        """Return the state of the cluster as this node sees it."""
        load = await self._load()
        return status_message(self._answering, await shards.list_shards(self._database), load)

    async def GetActivity(
        self, request: pb.GetActivityRequest, context: "Context[pb.GetActivityRequest, Activity]"
    ) -> Activity:
        """Return what all nodes together did in the last quarter of an hour."""
        return await self._activity.message()

    async def Diagnose(
        self, request: pb.DiagnoseRequest, context: "Context[pb.DiagnoseRequest, Diagnosis]"
    ) -> Diagnosis:
        """Look for what is wrong in the database and the cluster."""
        return await self._doctor.diagnose()

    async def Rebalance(
        self, request: pb.RebalanceRequest, context: "Context[pb.RebalanceRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Bring the shards into balance now, or tell what that would move."""
        return await self._orders.rebalance(request, context)

    async def DrainNode(
        self, request: pb.DrainNodeRequest, context: "Context[pb.DrainNodeRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Move everything away from a node, gracefully, and give it nothing."""
        return await self._orders.drain(request, context)

    async def UndrainNode(
        self, request: pb.UndrainNodeRequest, context: "Context[pb.UndrainNodeRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Let a drained or evicted node have shards again."""
        return await self._orders.undrain(request, context)

    async def EvictNode(
        self, request: pb.EvictNodeRequest, context: "Context[pb.EvictNodeRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Take everything from a node without its help."""
        return await self._orders.evict(request, context)

    async def MoveShard(
        self, request: pb.MoveShardRequest, context: "Context[pb.MoveShardRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Move one shard to a node."""
        return await self._orders.move(request, context)

    async def PauseRebalance(
        self, request: pb.PauseRebalanceRequest, context: "Context[pb.PauseRebalanceRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Move shards only by a further order, or when their node cannot serve."""
        return await self._orders.pause(request, context)

    async def ResumeRebalance(
        self, request: pb.ResumeRebalanceRequest, context: "Context[pb.ResumeRebalanceRequest, pb.PlanChange]"
    ) -> pb.PlanChange:
        """Let shards move for balance again."""
        return await self._orders.resume(request, context)

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

    async def SetHandlerDispatch(
        self,
        request: pb.SetHandlerDispatchRequest,
        context: "Context[pb.SetHandlerDispatchRequest, pb.Handler]",
    ) -> pb.Handler:
        """Say how a handler's jobs are handed out."""
        wanted = DispatchRequest.of(request)
        namespace = await self._catalog.namespace(wanted.namespace)
        if wanted.mode is DispatchMode.KAFKA and not self._publishing.available:
            raise WrongState("NO_KAFKA", "this node knows no Kafka; start every node with --kafka HOST:PORT first")
        changed = await self._catalog.set_dispatch(
            namespace,
            wanted.handler,
            wanted.mode,
            queue_timeout=wanted.queue_timeout,
            max_unfinished=wanted.max_unfinished,
        )
        await self._publishing.changed(changed)
        return self._handler(namespace, changed, await self._load())

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
        check_quotas(problems, "quotas", request.quotas)
        problems.check()
        policies = policies_of(request.retry, request.timeouts)
        quotas = quotas_of(request.quotas)
        return _namespace_message(await self._catalog.create_namespace(request.namespace, policies, quotas))

    async def UpdateNamespace(
        self, request: pb.UpdateNamespaceRequest, context: "Context[pb.UpdateNamespaceRequest, pb.Namespace]"
    ) -> pb.Namespace:
        """Change the quotas of a namespace."""
        problems = Problems()
        if not request.namespace:
            problems.add("namespace", "", "is required")
        check_namespace(problems, request.namespace)
        check_quotas(problems, "quotas", request.quotas)
        problems.check()
        return _namespace_message(await self._catalog.set_quotas(request.namespace, changed_quotas(request.quotas)))

    async def ListNamespaces(
        self,
        request: pb.ListNamespacesRequest,
        context: "Context[pb.ListNamespacesRequest, pb.ListNamespacesResponse]",
    ) -> pb.ListNamespacesResponse:
        """List all namespaces by name."""
        found = await self._catalog.namespaces()
        return pb.ListNamespacesResponse(namespaces=map(_namespace_message, found))

    async def CreateToken(
        self, request: pb.CreateTokenRequest, context: "Context[pb.CreateTokenRequest, pb.CreateTokenResponse]"
    ) -> pb.CreateTokenResponse:
        """Give rights to a new token, or to certificates of a name."""
        return await self._tokens.create(request)

    async def ListTokens(
        self, request: pb.ListTokensRequest, context: "Context[pb.ListTokensRequest, pb.ListTokensResponse]"
    ) -> pb.ListTokensResponse:
        """List the tokens that are not revoked, by holder."""
        return await self._tokens.list()

    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, context: "Context[pb.RevokeTokenRequest, pb.Token]"
    ) -> pb.Token:
        """Revoke a token for good."""
        return await self._tokens.revoke(request)

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
        published = load.published.get(handler.handler_id)
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
            dispatch=dispatch_message(handler.dispatch.mode),
            queue_timeout=duration(handler.dispatch.queue_timeout),
            max_unfinished=handler.dispatch.max_unfinished,
            published_count=published.count if published else 0,
            oldest_published=duration(load.now - published.oldest) if published else None,
        )

    async def _load(self) -> LoadSample:
        return await self._sampler.sample(SAMPLE_LIFE_S)


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
        quotas=quotas_message(namespace.quotas),
    )
