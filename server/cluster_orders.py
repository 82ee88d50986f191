"""Hands orders of the API to the shard manager, and its refusals back in the API's terms."""

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from server.api.errors import Aborted, ApiError, Exhausted, InvalidRequest, NotFound, NotLeading, WrongState
from server.api.ports import MoveView, PlanChangeView
from server.domain.errors import InvalidInput
from shard_manager import errors, steering


class Manager(Protocol):
    """What this needs of a shard manager."""

    async def order(self, given: steering.Given) -> steering.PlanChange: ...
    async def end_session_of(self, node: str) -> bool: ...


class ManagerOrders:
    """Implements `server.api.ports.ClusterOrders`."""

    def __init__(self, manager: Callable[[], Manager]) -> None:
        self._manager = manager

    async def rebalance(self, *, dry_run: bool, expected_version: int) -> PlanChangeView:
        """Bring the shards into balance, or tell how."""
        expected = expected_version or None
        return await self._give(
            steering.Given(order=steering.Rebalance(), dry_run=dry_run, expected_version=expected)
        )  # fmt: skip

    async def drain(self, node: str, *, force: bool) -> PlanChangeView:
        """Take a node's shards away gracefully and give it none."""
        return await self._give(steering.Given(order=steering.DrainNode(node=node, force=force)))

    async def undrain(self, node: str) -> PlanChangeView:
        """Let a drained or evicted node have shards again."""
        return await self._give(steering.Given(order=steering.UndrainNode(node=node)))

    async def evict(self, node: str, *, force: bool, incarnation: int) -> PlanChangeView:
        """Take a process's shards away without its help and give it none."""
        order = steering.EvictNode(node=node, force=force, incarnation=incarnation)
        return await self._give(steering.Given(order=order))

    async def move(self, shard: int, node: str, pin: timedelta | None) -> PlanChangeView:
        """Give a shard to a node, and keep it there for `pin`."""
        return await self._give(steering.Given(order=steering.MoveShard(shard=shard, node=node, pin=pin)))

    async def pause(self) -> PlanChangeView:
        """Make no moves for balance."""
        return await self._give(steering.Given(order=steering.PauseRebalance()))

    async def resume(self) -> PlanChangeView:
        """Make moves for balance again."""
        return await self._give(steering.Given(order=steering.ResumeRebalance()))

    async def end_session_of(self, node: str) -> bool:
        """End the session of a node, whoever leads; say whether it had one."""
        try:
            return await self._manager().end_session_of(node)
        except errors.CoordinatorError as error:
            raise NotLeading("COORDINATOR_UNAVAILABLE", f"{error}; the order may be repeated") from error

    async def _give(self, given: steering.Given) -> PlanChangeView:
        try:
            change = await self._manager().order(given)
        except errors.OrderRefused as refused:
            raise _api_error(refused) from refused
        except errors.NotLeader as error:
            raise NotLeading("NOT_LEADER", f"{error}; the order may be repeated") from error
        return PlanChangeView(
            version=change.plan.version,
            moves=[
                MoveView(shard=move.shard, source=move.source or "", target=move.target or "", cause=move.cause.value)
                for move in change.moves
            ],
            before=change.before,
            after=change.after,
        )


def _api_error(refused: errors.OrderRefused) -> ApiError:
    match refused:
        case errors.UnknownNode():
            return NotFound("NODE_NOT_FOUND", str(refused), {"node": refused.node})
        case errors.ProcessGone():
            return NotFound("PROCESS_GONE", str(refused), {"node": refused.node})
        case errors.UnknownShard():
            return InvalidRequest(
                [InvalidInput("shard", refused.shard, f"has to be from 0 to {refused.shards - 1}")]
            )  # fmt: skip
        case errors.NodeUnfit():
            return WrongState("NODE_UNFIT", str(refused), {"node": refused.node})
        case errors.LastNode():
            return WrongState("LAST_NODE", str(refused), {"node": refused.node})
        case errors.ClusterPaused():
            return WrongState("REBALANCE_PAUSED", str(refused))
        case errors.PlanChanged():
            return Aborted("PLAN_CHANGED", str(refused), {"plan_version": str(refused.found)})
        case errors.TooManyOrders():
            return Exhausted(
                "LIMIT_REACHED", str(refused), {"limit": str(refused.limit)}, retry_after=timedelta(hours=1)
            )  # fmt: skip
        case _:
            return WrongState("ORDER_REFUSED", str(refused))
