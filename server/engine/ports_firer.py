"""What the firer asks of the store."""

from collections.abc import Sequence
from typing import Protocol

from server.domain.due_schedule import DueSchedules, Fired, FireOrder, FireTimes
from server.engine.ports import Epochs


class FirerStore(Protocol):
    """Finding and firing schedules. All methods raise `StoreUnavailable` or `OutcomeUnknown`."""

    async def due_schedules(
        self, partition: int, shards: Sequence[int], *, limit: int, without: Sequence[int] = ()
    ) -> DueSchedules:
        """Return up to `limit` schedules of these shards whose time has come, except those of the ids `without`."""

    async def next_fire_times(self, partition: int, shards: Sequence[int], *, without: Sequence[int] = ()) -> FireTimes:
        """Return the earliest `next_fire_at` of each of these shards, past or future."""

    async def fire(self, partition: int, epochs: Epochs, orders: Sequence[FireOrder]) -> Fired:
        """Apply orders, fenced. Any other error than those above means that an order itself cannot be applied."""
