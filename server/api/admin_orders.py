"""The orders of AdminService: checked here, carried out by the leader."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

import grpc.aio
from google.protobuf.message import Message

from server.api.leader_call import LeaderCall, Method
from server.api.ports import ClusterOrders, ClusterView, PlanChangeView
from server.api.validation import Problems, check_node, check_span
from shardwheel.v1 import admin_service_pb2 as pb

MAX_PIN: Final = timedelta(days=365)

Request = TypeVar("Request", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AdminOrders:
    """Orders that come to `node`; `orders` carries them out if it leads."""

    def __init__(self, *, node: str, cluster: ClusterView, orders: ClusterOrders, leader: LeaderCall) -> None:
        self._node = node
        self._cluster = cluster
        self._orders = orders
        self._leader = leader

    async def rebalance(self, request: pb.RebalanceRequest, context: Context) -> pb.PlanChange:
        """Bring the shards into balance, or tell how."""
        problems = Problems()
        expected = request.expected_plan_version
        if expected < 0:
            problems.add("expected_plan_version", expected, "has to be 0 for any, or the version of a plan")
        problems.check()
        return await self._run(
            lambda admin: admin.Rebalance,
            request,
            context,
            lambda: self._orders.rebalance(dry_run=request.dry_run, expected_version=expected),
        )

    async def drain(self, request: pb.DrainNodeRequest, context: Context) -> pb.PlanChange:
        """Move everything away from a node."""
        _check_node(request.node)
        return await self._run(
            lambda admin: admin.DrainNode,
            request,
            context,
            lambda: self._orders.drain(request.node, force=request.force),
        )

    async def undrain(self, request: pb.UndrainNodeRequest, context: Context) -> pb.PlanChange:
        """Let a node have shards again."""
        _check_node(request.node)
        return await self._run(
            lambda admin: admin.UndrainNode, request, context, lambda: self._orders.undrain(request.node)
        )

    async def evict(self, request: pb.EvictNodeRequest, context: Context) -> pb.PlanChange:
        """Take everything from a node without its help."""
        _check_node(request.node)
        if request.incarnation == 0:
            here = [one.incarnation for one in self._cluster.members() if one.node == request.node]
            # The process that was seen here is the one that is meant, even if it is out of sight in a moment.
            request.incarnation = here[0] if here else 0
        deposed = request.node if request.node == self._leader.leader != self._node else ""
        if deposed:
            # A leader that is to be evicted cannot be relied upon to do it. Its successor gets the order.
            await self._orders.end_session_of(request.node)
        return await self._run(
            lambda admin: admin.EvictNode,
            request,
            context,
            lambda: self._orders.evict(request.node, force=request.force, incarnation=request.incarnation),
            deposed=deposed,
        )

    async def move(self, request: pb.MoveShardRequest, context: Context) -> pb.PlanChange:
        """Give a shard to a node."""
        problems = Problems()
        if not request.HasField("shard"):
            problems.add("shard", "", "is required")
        check_node(problems, "node", request.node)
        pinned = request.HasField("pin")
        if pinned:
            check_span(problems, "pin", request.pin, most=MAX_PIN, positive=True)
        problems.check()
        pin = request.pin.ToTimedelta() if pinned else None
        return await self._run(
            lambda admin: admin.MoveShard,
            request,
            context,
            lambda: self._orders.move(request.shard, request.node, pin),
        )

    async def pause(self, request: pb.PauseRebalanceRequest, context: Context) -> pb.PlanChange:
        """Make no moves for balance."""
        return await self._run(lambda admin: admin.PauseRebalance, request, context, self._orders.pause)

    async def resume(self, request: pb.ResumeRebalanceRequest, context: Context) -> pb.PlanChange:
        """Make moves for balance again."""
        return await self._run(lambda admin: admin.ResumeRebalance, request, context, self._orders.resume)

    async def _run(
        self,
        method: "Method[Request, pb.PlanChange]",
        request: Request,
        context: Context,
        order: Callable[[], Awaitable[PlanChangeView]],
        deposed: str = "",
    ) -> pb.PlanChange:
        async def local() -> pb.PlanChange:
            return self._message(await order())

        return await self._leader.run(method, request, context, local, deposed=deposed)

    def _message(self, change: PlanChangeView) -> pb.PlanChange:
        return pb.PlanChange(
            leader=self._node,
            plan_version=change.version,
            moves=[
                pb.ShardMove(shard=move.shard, source=move.source, target=move.target, cause=move.cause)
                for move in change.moves
            ],
            balance=[
                pb.NodeBalance(node=node, before=change.before.get(node, 0), after=change.after.get(node, 0))
                for node in sorted({*change.before, *change.after})
            ],
        )


def _check_node(node: str) -> None:
    problems = Problems()
    check_node(problems, "node", node)
    problems.check()
