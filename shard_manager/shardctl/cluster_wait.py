"""Waiting until the shards are where the plan wants them."""

import asyncio
import time
from collections.abc import Mapping

import grpc

from shard_manager.shardctl.call_error import CallFailedError
from shard_manager.shardctl.cluster_view import SERVING
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import CommandFailedError
from shard_manager.shardctl.output import progress_bar
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.admin_service_pb2 import GetStatusRequest, GetStatusResponse, PlanChange, RebalanceRequest

_POLL_S = 0.2
# A node that restarts, or a leader that is replaced, is back within this.
_PATIENCE_S = 30.0
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def wait_until_served(connection: Connection, change: PlanChange, *, balanced: bool) -> None:
    """Return once every shard is served by its planned owner under the plan of `change` or a later one, and with
    `balanced` nothing is left to be moved for balance.

    Raises CommandFailedError when --timeout is over, and when the cluster has been out of reach for 30 s on end.
    """
    limit = connection.settings.timeout
    end_s = None if limit is None else time.monotonic() + limit.total_seconds()
    targets = {move.shard: move.target for move in change.moves}
    give_up_s = time.monotonic() + _PATIENCE_S
    left = "the cluster did not answer"
    with progress_bar() as progress:
        task = progress.add_task("shards in place", total=len(targets) or None)
        while end_s is None or time.monotonic() < end_s:
            try:
                status = await connection.call(connection.admin.GetStatus, GetStatusRequest())
                in_place, open_count = _count(status, targets)
                progress.update(task, completed=in_place)
                left = f"{counted(open_count, 'shard')} in transition"
                arrived = status.plan_version >= change.plan_version and not open_count
                if arrived and (not balanced or await _is_balanced(connection)):
                    return
                give_up_s = time.monotonic() + _PATIENCE_S
            except CallFailedError as error:
                if error.code not in _PASSING or time.monotonic() >= give_up_s:
                    raise
            await asyncio.sleep(_POLL_S)
    assert limit is not None
    raise CommandFailedError(
        f"error: the order is given, but not all is in place after {format_duration(limit)}: {left}",
        "`shardctl status` tells what the shards wait for; wait longer with a longer --timeout, or without one.",
    )


def _count(status: GetStatusResponse, targets: Mapping[int, str]) -> tuple[int, int]:
    """How many of the moved shards are at their targets, and how many shards in all are in transition."""
    in_place = sum(shard.owner == targets[shard.shard] for shard in status.shards if shard.shard in targets)
    # What no node can serve will not come into place by waiting.
    return in_place, sum(shard.state not in (SERVING, "unplanned") for shard in status.shards)


async def _is_balanced(connection: Connection) -> bool:
    change = await connection.call(connection.admin.Rebalance, RebalanceRequest(dry_run=True))
    return not change.moves
