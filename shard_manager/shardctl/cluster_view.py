"""Nodes, shards and moves as people see them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Block, Column, Line, Table
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.admin_service_pb2 import (
    GetStatusResponse,
    NodeBalance,
    NodeStatus,
    PlanChange,
    ShardMove,
    ShardStatus,
)

SERVING = "serving"

# From so long on, a span is shown in steps of so much.
_GRAINS = (
    (timedelta(days=1), timedelta(hours=1)),
    (timedelta(hours=1), timedelta(minutes=1)),
    (timedelta(minutes=1), timedelta(seconds=1)),
    (timedelta(), timedelta(milliseconds=100)),
)


def nodes_table(status: GetStatusResponse) -> Table:
    """One line per node: state, shards, load."""
    columns = (
        Column("NODE", minimum=12, keep_end=True),
        Column("STATE", state=True),
        Column("SHARDS", right=True),
        Column("DUE", right=True),
        Column("RUNNING", right=True),
        Column("WEIGHT", right=True),
        Column("JOINED", right=True),
        Column("ADDRESS", minimum=9, keep_end=True),
    )
    return Table(columns, [_node_row(status, node) for node in status.nodes], empty="no nodes")


def _node_row(status: GetStatusResponse, node: NodeStatus) -> tuple[str, ...]:
    return (
        f"{node.node} *" if node.leader else node.node,
        node.state,
        _shards_text(node),
        str(node.due_count),
        str(node.running_count),
        str(node.weight),
        _since_text(status, node.joined_at) if node.HasField("joined_at") else "-",
        node.address or "-",
    )


def _shards_text(node: NodeStatus) -> str:
    """The shards that a node has, and where the plan has another number, how many it is to have."""
    if node.shard_count == node.planned_shard_count:
        return str(node.shard_count)
    return f"{node.shard_count}→{node.planned_shard_count}"


def shards_table(shards: Iterable[ShardStatus]) -> Table:
    """One line per shard."""
    columns = (
        Column("SHARD", right=True),
        Column("STATE", state=True),
        Column("OWNER", minimum=8, keep_end=True),
        Column("PLANNED", minimum=8, keep_end=True),
        Column("EPOCH", right=True),
        Column("SINCE"),
    )
    rows = [
        (
            str(shard.shard),
            shard.state,
            shard.owner or "none",
            shard.planned_owner or "none",
            str(shard.epoch),
            instant_text(shard, "acquired_at") or "-",
        )
        for shard in shards
    ]
    return Table(columns, rows, empty="no shards")


def transition_table(status: GetStatusResponse, shards: Iterable[ShardStatus]) -> Table:
    """One line per shard in transition: since when, and what it waits for."""
    columns = (
        Column("SHARD", right=True),
        Column("STATE", state=True),
        Column("OWNER", minimum=8, keep_end=True),
        Column("PLANNED", minimum=8, keep_end=True),
        Column("FOR", right=True),
        Column("WAITS FOR", minimum=14),
    )
    rows = [
        (
            str(shard.shard),
            shard.state,
            shard.owner or "none",
            shard.planned_owner or "none",
            _since_text(status, shard.transition_since) if shard.HasField("transition_since") else "-",
            shard.waiting_for,
        )
        for shard in shards
    ]
    return Table(columns, rows)


def _since_text(status: GetStatusResponse, since: Timestamp) -> str:
    """How long ago it was when the status was made, in its two largest units or so."""
    passed = max(status.now.ToDatetime(tzinfo=UTC) - since.ToDatetime(tzinfo=UTC), timedelta())
    grain = next(grain for limit, grain in _GRAINS if passed >= limit)
    return format_duration(passed // grain * grain)


def change_blocks(change: PlanChange, moves_limit: int) -> Iterator[Block]:
    """The moves of an order as a diff, at most so many of them, and the balance before and after."""
    if change.moves:
        yield _moves_table(change.moves[:moves_limit])
        if len(change.moves) > moves_limit:
            yield Line(f"… and {len(change.moves) - moves_limit} more; -o json lists all")
        yield _balance_table(change.balance)
    yield Line(f"{moves_text(change)}; plan {change.plan_version}")


def moves_text(change: PlanChange) -> str:
    """How many shards move, and why."""
    if not change.moves:
        return "no shard moves"
    causes = Counter(move.cause for move in change.moves)
    return f"{counted(len(change.moves), 'shard')} to move ({', '.join(f'{c} {n}' for c, n in sorted(causes.items()))})"


def _moves_table(moves: Iterable[ShardMove]) -> Table:
    columns = (
        Column("SHARD", right=True),
        Column("FROM", minimum=10, keep_end=True),
        Column("TO", minimum=10, keep_end=True),
        Column("CAUSE"),
    )
    return Table(columns, [(str(m.shard), m.source or "none", m.target or "none", m.cause) for m in moves])


def _balance_table(balance: Iterable[NodeBalance]) -> Table:
    columns = (
        Column("NODE", minimum=12, keep_end=True),
        Column("BEFORE", right=True),
        Column("AFTER", right=True),
        Column("CHANGE", right=True),
    )
    return Table(columns, [(b.node, str(b.before), str(b.after), f"{b.after - b.before:+d}") for b in balance])
