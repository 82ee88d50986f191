"""`shardctl status`, `nodes` and `shards`: the state of the cluster as the node that answers sees it."""

from collections.abc import Iterator
from typing import Annotated

import typer

from shard_manager.shardctl.cluster_view import SERVING, nodes_table, shards_table, transition_table
from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Block, Details, Line
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.admin_service_pb2 import GetStatusRequest, GetStatusResponse

_SHOWN_SHARDS = 10
_SHOWN_PINS = 5
_STATES = (SERVING, "moving", "unowned", "held", "unplanned")


async def status(
    cli: Cli,
    *,
    shards: Annotated[bool, typer.Option("--shards", help="List all shards, not only those in transition.")] = False,
) -> None:
    """Show the cluster: its nodes, shards in transition, workers and jobs."""
    response = await _fetch(cli)
    cli.output.emit(message_to_json(response), *_blocks(response, shards))


async def nodes(cli: Cli) -> None:
    """List the nodes with their state, shards and load. A star marks the leader."""
    response = await _fetch(cli)
    data = {"nodes": [message_to_json(node) for node in response.nodes]}
    cli.output.emit(data, nodes_table(response))


async def shards(
    cli: Cli,
    *,
    node: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only those that NODE has, or is to have by the plan.")
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help=f"Only those that are {', '.join(_STATES)}.")
    ] = None,
) -> None:
    """List the shards with owner, planned owner, epoch and state."""
    if state is not None and state not in _STATES:
        raise RefusedInputError(f"error: --state: {state!r} is none of {', '.join(_STATES)}")
    response = await _fetch(cli)
    names = {each.node for each in response.nodes}
    if node is not None and node not in names:
        raise RefusedInputError(f"error: --node: there is no node {node!r}; there are: {', '.join(sorted(names))}")
    found = [
        shard
        for shard in response.shards
        if (state is None or shard.state == state) and (node is None or node in (shard.owner, shard.planned_owner))
    ]
    cli.output.emit({"shards": [message_to_json(shard) for shard in found]}, shards_table(found))


async def _fetch(cli: Cli) -> GetStatusResponse:
    async with cli.connect() as connection:
        return await connection.call(connection.admin.GetStatus, GetStatusRequest())


def _blocks(status: GetStatusResponse, all_shards: bool) -> Iterator[Block]:
    yield Details(_pairs(status))
    yield nodes_table(status)
    moving = [shard for shard in status.shards if shard.state != SERVING]
    if moving:
        yield Line(f"{len(moving)} of {counted(status.shard_count, 'shard')} in transition:")
        yield transition_table(status, moving[:_SHOWN_SHARDS])
        if len(moving) > _SHOWN_SHARDS:
            yield Line(f"… and {len(moving) - _SHOWN_SHARDS} more; --shards lists all")
    if all_shards:
        yield shards_table(status.shards)


def _pairs(status: GetStatusResponse) -> list[tuple[str, str]]:
    here = sum(node.state != "gone" for node in status.nodes)
    oldest = ""
    if status.HasField("oldest_due"):
        oldest = f" (the oldest for {format_duration(status.oldest_due.ToTimedelta())})"
    reason = f" ({status.plan_reason})" if status.plan_reason else ""
    return [
        ("cluster", f"{counted(here, 'node')}, {counted(status.shard_count, 'shard')}"),
        ("leader", status.leader or "none known: orders have to wait, what is shown is what this node knows"),
        ("plan", f"{status.plan_version}{reason}"),
        ("orders", _orders_text(status)),
        ("coordinator", status.coordinator),
        ("trouble", status.trouble),
        ("jobs", f"{status.due_count} due{oldest}, {status.running_count} running, {status.pending_count} pending"),
        ("workers", str(status.worker_count)),
        ("schedules", str(status.schedule_count)),
        ("answered by", f"{status.answered_by}, version {status.version}"),
        ("at", instant_text(status, "now")),
    ]


def _orders_text(status: GetStatusResponse) -> str:
    """The orders in force, empty if there are none."""
    pins = [
        f"shard {pin.shard} pinned to {pin.node}"
        + (f" until {instant_text(pin, 'until')}" if pin.HasField("until") else "")
        for pin in status.pins[:_SHOWN_PINS]
    ]
    if len(status.pins) > _SHOWN_PINS:
        pins.append(f"{len(status.pins) - _SHOWN_PINS} more pins")
    parts = [
        "rebalancing is paused" if status.paused else "",
        f"drained: {' '.join(status.drained_nodes)}" if status.drained_nodes else "",
        f"evicted: {' '.join(status.evicted_nodes)}" if status.evicted_nodes else "",
        *pins,
    ]
    return "; ".join(part for part in parts if part)
