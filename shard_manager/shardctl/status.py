"""`shardctl status`: the state of the cluster on one screen."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Block, Column, Details, Line, Table
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.admin_service_pb2 import GetStatusRequest, GetStatusResponse, ShardStatus

_SHOWN_SHARDS = 10


async def status(
    cli: Cli,
    *,
    shards: Annotated[bool, typer.Option("--shards", help="List all shards, not only those in transition.")] = False,
) -> None:
    """Show the cluster: its nodes, shards in transition, workers and jobs."""
    async with cli.connect() as connection:
        response = await connection.call(connection.admin.GetStatus, GetStatusRequest())
    cli.output.emit(message_to_json(response), *_blocks(response, shards))


def _blocks(status: GetStatusResponse, all_shards: bool) -> Iterator[Block]:
    yield Details(_pairs(status))
    yield _nodes(status)
    moving = [shard for shard in status.shards if shard.owner != shard.planned_owner or not shard.owner]
    if all_shards:
        yield _shards(status.shards)
    elif moving:
        yield Line(f"{len(moving)} of {counted(status.shard_count, 'shard')} in transition:")
        yield _shards(moving[:_SHOWN_SHARDS])
        if len(moving) > _SHOWN_SHARDS:
            yield Line(f"… and {len(moving) - _SHOWN_SHARDS} more; --shards lists all")


def _pairs(status: GetStatusResponse) -> list[tuple[str, str]]:
    nodes, oldest = counted(len(status.nodes), "node"), ""
    if status.HasField("oldest_due"):
        oldest = f" (the oldest for {format_duration(status.oldest_due.ToTimedelta())})"
    return [
        ("cluster", f"{nodes}, {counted(status.shard_count, 'shard')}, plan {status.plan_version}"),
        ("leader", status.leader or "none known"),
        ("coordinator", status.coordinator),
        ("jobs", f"{status.due_count} due{oldest}, {status.running_count} running, {status.pending_count} pending"),
        ("workers", str(status.worker_count)),
        ("schedules", str(status.schedule_count)),
        ("answered by", f"{status.answered_by}, version {status.version}"),
        ("at", instant_text(status, "now")),
    ]


def _nodes(status: GetStatusResponse) -> Table:
    columns = (
        Column("NODE", minimum=12),
        Column("STATE", state=True),
        Column("SHARDS", right=True),
        Column("WEIGHT", right=True),
        Column("LEADER"),
        Column("ADDRESS", minimum=12),
    )
    rows = [
        (
            node.node,
            node.state,
            str(node.shard_count),
            str(node.weight),
            "yes" if node.leader else "",
            node.address,
        )
        for node in status.nodes
    ]
    return Table(columns, rows, empty="no nodes")


def _shards(shards: Iterable[ShardStatus]) -> Table:
    columns = (
        Column("SHARD", right=True),
        Column("OWNER", minimum=10),
        Column("PLANNED", minimum=10),
        Column("EPOCH", right=True),
        Column("SINCE"),
    )
    rows = [
        (
            str(shard.shard),
            shard.owner or "none",
            shard.planned_owner or "none",
            str(shard.epoch),
            instant_text(shard, "acquired_at") or "-",
        )
        for shard in shards
    ]
    return Table(columns, rows)
