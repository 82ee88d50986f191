"""What a node tells of itself and of the cluster as it sees it."""

from collections.abc import Mapping
from dataclasses import dataclass

from shard_manager.coordinator import Member, SessionInfo
from shard_manager.lease import State
from shard_manager.orders import Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStatus:
    """What a node knows of itself and the cluster, for `shardctl status` and health checks.

    `members`, `sessions`, `leader`, the plan's version (0: no plan seen), reason, orders and `owners` (shard to node)
    are as of the last successful round. `planned_for_s`: for how many seconds the plan has given a shard to its owner,
    as far as this node has seen it. `missing_for_s`: for how many seconds nodes have been missing to which the plan
    still gives shards. `trouble` is the error that the rounds or the heartbeat are retrying, None if all is well.
    """

    member: Member
    joined: bool
    sessions_lost: int
    leader: str | None
    plan_version: int
    plan_reason: str
    orders: Orders
    members: Mapping[str, Member]
    sessions: Mapping[str, SessionInfo]
    owners: Mapping[int, str]
    planned_for_s: Mapping[int, float]
    missing_for_s: Mapping[str, float]
    shards: Mapping[int, State]
    trouble: str | None
