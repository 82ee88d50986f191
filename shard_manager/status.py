"""What a node tells of itself and of the cluster as it sees it."""

from collections.abc import Mapping
from dataclasses import dataclass

from shard_manager.coordinator import Member
from shard_manager.lease import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStatus:
    """What a node knows of itself and the cluster, for `shardctl status` and health checks.

    `members`, `leader`, `plan_version` (0: no plan seen) and `owners` (shard to node, by the plan) are as of the last
    successful round. `trouble` is the error that the rounds or the heartbeat are retrying, None if all is well.
    """

    member: Member
    joined: bool
    sessions_lost: int
    leader: str | None
    plan_version: int
    paused: bool
    members: Mapping[str, Member]
    owners: Mapping[int, str]
    shards: Mapping[int, State]
    trouble: str | None
