"""Commands that steer the cluster: rebalance, drain, undrain, evict, move, pause and resume."""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, TypeAlias, TypeVar

import grpc.aio
import typer
from google.protobuf.message import Message

from shard_manager.shardctl.cluster_view import change_blocks, moves_text
from shard_manager.shardctl.cluster_wait import wait_until_served
from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.layout import Block, Line
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.option_types import DURATION
from shardwheel.v1.admin_service_pb2 import (
    DrainNodeRequest,
    EvictNodeRequest,
    MoveShardRequest,
    PauseRebalanceRequest,
    PlanChange,
    RebalanceRequest,
    ResumeRebalanceRequest,
    UndrainNodeRequest,
)
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub

_SHOWN_MOVES = 20

Request = TypeVar("Request", bound=Message)
Method: TypeAlias = "Callable[[AdminServiceStub], grpc.aio.UnaryUnaryMultiCallable[Request, PlanChange]]"
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", show_default=False)]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the nodes of the plan serve their shards.")]
Force = Annotated[bool, typer.Option("--force", help="Even if no other node can serve: no job starts then.")]


async def rebalance(
    cli: Cli,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    wait: Wait = False,
    expect: Annotated[
        int | None, typer.Option("--expect-plan", metavar="VERSION", min=1, help="Refuse if the plan is another.")
    ] = None,
) -> None:
    """Bring the shards into balance now, without waiting for the cluster to settle."""
    if dry_run and wait:
        raise RefusedInputError("error: --wait: there is nothing to wait for with --dry-run")
    request = RebalanceRequest(dry_run=dry_run, expected_plan_version=expect or 0)
    change = await _order(cli, lambda admin: admin.Rebalance, request, wait=wait, balanced=True)
    cli.output.emit(message_to_json(change), *change_blocks(change, _SHOWN_MOVES))


async def drain(cli: Cli, *, node: NodeName, wait: Wait = False, force: Force = False) -> None:
    """Move all shards away from a node, gracefully. It runs on and gets none until it is undrained."""
    change = await _order(cli, lambda admin: admin.DrainNode, DrainNodeRequest(node=node, force=force), wait=wait)
    _say(cli, change, f"node {node} is drained", "gives its shards away" if change.moves and not wait else "")


async def undrain(cli: Cli, *, node: NodeName) -> None:
    """Let a drained or evicted node have shards again, once the cluster has settled."""
    change = await _order(cli, lambda admin: admin.UndrainNode, UndrainNodeRequest(node=node), wait=False)
    _say(cli, change, f"node {node} is undrained", "it is given shards once the cluster has settled")


async def evict(
    cli: Cli,
    *,
    node: NodeName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Wait = False,
    force: Force = False,
) -> None:
    """Take all shards from a node that is alive but useless, without its help. Prefer `drain` for one that works."""
    if not yes:
        _confirm(f"End the session of node {node} by force?")
    change = await _order(cli, lambda admin: admin.EvictNode, EvictNodeRequest(node=node, force=force), wait=wait)
    _say(cli, change, f"node {node} is evicted", "it is given no shards until it is restarted or undrained")


async def move(
    cli: Cli,
    *,
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="Number of the shard.", show_default=False)],
    node: NodeName,
    pin: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Keep it there for so long. Without, balance may move it.")
    ] = None,
    wait: Wait = False,
) -> None:
    """Move one shard to a node."""
    if not -(2**31) <= shard < 2**31:
        raise RefusedInputError(f"error: SHARD: {shard} is no shard")
    request = MoveShardRequest(shard=shard, node=node)
    if pin is not None:
        request.pin.FromTimedelta(pin)
    change = await _order(cli, lambda admin: admin.MoveShard, request, wait=wait)
    _say(cli, change, f"shard {shard} belongs to node {node}", "")


async def pause_rebalance(cli: Cli) -> None:
    """Move shards only by a further order, or because their node cannot serve."""
    change = await _order(cli, lambda admin: admin.PauseRebalance, PauseRebalanceRequest(), wait=False)
    _say(cli, change, "rebalancing is paused", "")


async def resume_rebalance(cli: Cli) -> None:
    """Move shards for balance again, once the cluster has settled."""
    change = await _order(cli, lambda admin: admin.ResumeRebalance, ResumeRebalanceRequest(), wait=False)
    _say(cli, change, "rebalancing is resumed", "")


async def _order(
    cli: Cli, method: "Method[Request]", request: Request, *, wait: bool, balanced: bool = False
) -> PlanChange:
    async with cli.connect() as connection:
        change = await connection.call(method(connection.admin), request)
        if wait:
            await wait_until_served(connection, change, balanced=balanced)
        return change


def _say(cli: Cli, change: PlanChange, *parts: str) -> None:
    blocks: list[Block] = [Line("; ".join(part for part in (*parts, moves_text(change)) if part))]
    cli.output.emit(message_to_json(change), *blocks)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise RefusedInputError("error: --yes: is required where nobody can be asked")
    if not typer.confirm(question, err=True):
        raise RefusedInputError("error: not confirmed; nothing was changed")
