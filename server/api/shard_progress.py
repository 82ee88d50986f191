"""Where each shard stands between the plan and the database: pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from server.api.ports import MemberView, PlanView
from server.store.shards import ShardRow


class ShardState(StrEnum):
    """`SERVING`: its planned owner has it. `MOVING`: another still serves it. `UNOWNED`: nobody does, its planned owner
    is to take it. `HELD`: its planned owner is missing, and is given time to come back. `UNPLANNED`: no node can serve.
    """

    SERVING = "serving"
    MOVING = "moving"
    UNOWNED = "unowned"
    HELD = "held"
    UNPLANNED = "unplanned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of a shard, what it waits for in words, and for how many seconds as far as that is known."""

    state: ShardState
    waiting_for: str = ""
    for_s: float | None = None


def progress_of(row: ShardRow, plan: PlanView, members: Mapping[str, MemberView]) -> Progress:
    """Say where a shard stands, by its row in the database, the plan, and the nodes that are here."""
    planned = plan.owners.get(row.shard, "")
    since = plan.planned_for_s.get(row.shard)
    if not planned:
        return Progress(state=ShardState.UNPLANNED, waiting_for="a node that can serve", for_s=since)
    if planned not in members:
        return Progress(
            state=ShardState.HELD,
            waiting_for=f"{planned} to come back, or else another",
            for_s=plan.missing_for_s.get(planned),
        )
    owner = members.get(row.owner or "")
    if owner is None or row.owner_incarnation != owner.incarnation:
        gone = f" ({row.owner} is gone)" if row.owner and row.owner != planned else ""
        return Progress(state=ShardState.UNOWNED, waiting_for=f"{planned} to take it{gone}", for_s=since)
    if row.owner != planned:
        return Progress(state=ShardState.MOVING, waiting_for=f"{row.owner} to release it", for_s=since)
    return Progress(state=ShardState.SERVING)
