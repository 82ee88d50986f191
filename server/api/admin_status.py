"""The answer to GetStatus, from what the database and this node know: pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from server.api.convert import duration, timestamp
from server.api.ports import ClusterView, MemberView, PlanView
from server.api.shard_progress import Progress, ShardState, progress_of
from server.store.shards import ShardRow
from server.store.status import LoadSample
from shardwheel.v1 import admin_service_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Who answers: the node's name and version, and the cluster as it sees it."""

    node: str
    version: str
    cluster: ClusterView


def status_message(answering: Answering, rows: Sequence[ShardRow], load: LoadSample) -> pb.GetStatusResponse:
    """Put together what is known. Never waits for a leader or the coordinator."""
    cluster = answering.cluster
    plan, leader = cluster.plan(), cluster.leader()
    members = {member.node: member for member in cluster.members()}
    oldest = min((one.oldest for one in load.due.values()), default=None)
    published = min((one.oldest for one in load.published.values()), default=None)
    return pb.GetStatusResponse(
        answered_by=answering.node,
        coordinator=cluster.kind,
        leader=leader,
        plan_version=plan.version,
        shard_count=len(rows),
        nodes=_nodes(members.values(), leader, plan, rows, load),
        shards=[_shard(row, plan, progress_of(row, plan, members), load) for row in rows],
        worker_count=load.workers,
        due_count=sum(one.count for one in load.due.values()),
        pending_count=load.pending,
        running_count=load.running,
        oldest_due=None if oldest is None else duration(load.now - oldest),
        schedule_count=load.schedules,
        version=answering.version,
        now=timestamp(load.now),
        plan_reason=plan.reason,
        paused=plan.paused,
        drained_nodes=plan.drained,
        evicted_nodes=plan.evicted,
        pins=[
            pb.ShardPin(shard=pin.shard, node=pin.node, until=timestamp(pin.until) if pin.until else None)
            for pin in plan.pins
        ],
        trouble=cluster.trouble(),
        published_count=sum(one.count for one in load.published.values()),
        oldest_published=None if published is None else duration(load.now - published),
    )


def _nodes(
    members: Iterable[MemberView], leader: str, plan: PlanView, rows: Sequence[ShardRow], load: LoadSample
) -> list[pb.NodeStatus]:
    """The nodes by name, and behind them those that are gone and still have shards."""
    owned = Counter(row.owner for row in rows if row.owner)
    planned = Counter(plan.owners.values())
    due: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for row in rows:
        due[row.owner or ""] += load.due_by_shard.get(row.shard, 0)
        running[row.owner or ""] += load.running_by_shard.get(row.shard, 0)
    here = {member.node: member for member in members}
    gone = sorted((set(owned) | set(planned)) - set(here))
    return [
        pb.NodeStatus(
            node=one.node,
            address=one.address,
            state=one.state,
            shard_count=owned[one.node],
            weight=one.weight,
            leader=one.node == leader,
            planned_shard_count=planned[one.node],
            due_count=due[one.node],
            running_count=running[one.node],
            incarnation=one.incarnation,
            joined_at=timestamp(one.joined_at) if one.joined_at else None,
        )
        for one in [
            *(here[name] for name in sorted(here)),
            *(MemberView(node=name, address="", state="gone", weight=0) for name in gone),
        ]
    ]


def _shard(row: ShardRow, plan: PlanView, progress: Progress, load: LoadSample) -> pb.ShardStatus:
    since = None
    if progress.state is not ShardState.SERVING and progress.for_s is not None:
        since = timestamp(load.now - timedelta(seconds=progress.for_s))
    return pb.ShardStatus(
        shard=row.shard,
        epoch=row.epoch,
        owner=row.owner or "",
        planned_owner=plan.owners.get(row.shard, ""),
        acquired_at=timestamp(row.acquired_at) if row.acquired_at and row.owner else None,
        state=progress.state.value,
        waiting_for=progress.waiting_for,
        transition_since=since,
    )
