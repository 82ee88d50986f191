"""What `shardctl top` shows of a moment: rates and lateness of the last minute, queues, nodes, workers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from shard_manager.shardctl.cluster_view import SERVING, nodes_table
from shard_manager.shardctl.handlers import handlers_table
from shard_manager.shardctl.job_view import instant_text
from shard_manager.shardctl.layout import Block, Details, Line
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.pace import curve, pace_of
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_duration
from shard_manager.shardctl.workers import workers_table
from shardwheel.v1.activity_pb2 import Activity
from shardwheel.v1.admin_service_pb2 import GetStatusResponse, Handler, Worker

CURVE_STEPS: Final = 60
# Lines beside the rows of the three tables: the details, their titles, empty lines between, the last line.
_FRAME_LINES: Final = 18
_LEAST_ROWS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a server said at one moment; handlers and workers are those of the namespace."""

    namespace: str
    status: GetStatusResponse
    activity: Activity
    handlers: Sequence[Handler]
    workers: Sequence[Worker]


def to_json(moment: Moment) -> dict[str, Json]:
    """The moment for programs: the status without its shards, the rates, handlers and workers."""
    return {
        "status": message_to_json(moment.status, without=("shards",)),
        "activity": {**pace_of(moment.activity).to_json(), "missing_nodes": list(moment.activity.missing_nodes)},
        "handlers": [message_to_json(handler) for handler in moment.handlers],
        "workers": [message_to_json(worker) for worker in moment.workers],
    }


def blocks(moment: Moment, height: int | None) -> Iterator[Block]:
    """The moment for people, in about `height` lines; None: as many as it takes."""
    nodes, handlers, workers = _rows(moment, height)
    busiest = sorted(moment.handlers, key=_urgency)
    running = sorted(moment.workers, key=lambda worker: -worker.running_count)
    yield Details(_pairs(moment))
    shown = GetStatusResponse()
    shown.CopyFrom(moment.status)
    del shown.nodes[nodes:]
    yield nodes_table(shown)
    yield handlers_table(busiest[:handlers])
    yield workers_table(running[:workers])
    cut = {
        "node": len(moment.status.nodes) - nodes,
        "handler": len(busiest) - handlers,
        "worker": len(running) - workers,
    }
    if any(cut.values()):
        yield Line("not shown: " + ", ".join(counted(count, word) for word, count in cut.items() if count))


def _rows(moment: Moment, height: int | None) -> tuple[int, int, int]:
    """How many rows each table gets: the nodes first, then the handlers, the workers what is left."""
    wanted = (len(moment.status.nodes), len(moment.handlers), len(moment.workers))
    if height is None:
        return wanted
    left = max(height - _FRAME_LINES, 3 * _LEAST_ROWS)
    given = []
    for number, count in enumerate(wanted):
        for_others = _LEAST_ROWS * (2 - number)
        rows = min(count, max(_LEAST_ROWS, left - for_others))
        left -= rows
        given.append(rows)
    return given[0], given[1], given[2]


def _pairs(moment: Moment) -> list[tuple[str, str]]:
    status, pace = moment.status, pace_of(moment.activity)
    moving = sum(shard.state != SERVING for shard in status.shards)
    oldest = f", the oldest for {format_duration(_rounded(status))}" if status.HasField("oldest_due") else ""
    missing = ", ".join(moment.activity.missing_nodes)
    nodes = counted(len(status.nodes), "node")
    return [
        ("cluster", f"{nodes}, leader {status.leader or 'none'}, at {instant_text(status, 'now')}"),
        ("shards", f"{status.shard_count}, " + (f"{moving} of them in transition" if moving else "all served")),
        ("trouble", status.trouble),
        ("jobs", f"{status.due_count} due{oldest}; {status.running_count} running, {status.pending_count} pending"),
        ("last minute", pace.rates_text()),
        ("late by", pace.lateness_text()),
        ("started", curve([step.started_count for step in moment.activity.steps[-CURVE_STEPS:]])),
        ("not counted", f"{missing}: no answer" if missing else ""),
        ("namespace", moment.namespace),
    ]


def _urgency(handler: Handler) -> tuple[float, int, str]:
    waited = handler.oldest_due.ToTimedelta().total_seconds() if handler.HasField("oldest_due") else 0.0
    return -waited, -handler.running_count, handler.handler


def _rounded(status: GetStatusResponse) -> timedelta:
    waited = status.oldest_due.ToTimedelta()
    return timedelta(seconds=round(waited.total_seconds())) if waited >= timedelta(seconds=10) else waited
