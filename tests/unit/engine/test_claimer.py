"""The claimer when a read of due jobs fails in a way that nobody has foreseen."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from server.domain.due import ClaimResult, DueJob, Probe
from server.engine.claimer import Claimer
from server.engine.clock import DatabaseClock
from server.engine.deadlines import Deadlines
from server.engine.demand import Demand
from server.engine.due_index import DueIndex
from server.engine.failpoints import Failpoints
from server.engine.ownership import Ownership
from server.engine.registry import Registry
from server.engine.slots import SlotBook


class FailingOnce:
    """A store whose first read of due jobs fails."""

    def __init__(self) -> None:
        self.peeks = 0
        self.answered = asyncio.Event()

    async def peek(
        self, partition: int, pairs: Sequence[tuple[int, int, Sequence[datetime]]], limit: int
    ) -> list[DueJob]:
        self.peeks += 1
        if self.peeks == 1:
            raise RuntimeError("nobody has foreseen this")
        self.answered.set()
        return []

    async def sweep(self, partition: int) -> list[DueJob]:
        raise NotImplementedError

    async def pending_partitions(self, partitions: Sequence[int]) -> list[int]:
        raise NotImplementedError

    async def claim(
        self, partition: int, epochs: Sequence[tuple[int, int]], probes: Sequence[Probe], *, look_past: int
    ) -> ClaimResult:
        raise NotImplementedError

    async def unpark(
        self, partition: int, epochs: Sequence[tuple[int, int]], keys: Sequence[tuple[int, int, str, int]]
    ) -> tuple[list[DueJob], frozenset[int]]:
        raise NotImplementedError

    async def parked_with_room(
        self, partition: int, after: tuple[int, int, str] | None
    ) -> tuple[list[tuple[int, int, str, int]], tuple[int, int, str] | None]:
        raise NotImplementedError


async def nothing_to_recover(partition: int, shards: Sequence[int]) -> None:
    """No claim is made in this test."""


async def test_a_pair_whose_read_failed_is_read_again_when_a_sweep_finds_it() -> None:
    store, ownership, registry, clock, index = FailingOnce(), Ownership([0]), Registry(), DatabaseClock(), DueIndex()
    ownership.add(0, 1)
    slots = SlotBook(silence_s=1.0)
    claimer = Claimer(
        store=store,
        ownership=ownership,
        slots=slots,
        index=index,
        registry=registry,
        deadlines=Deadlines(registry=registry, clock=clock, over=lambda entry: None),
        clock=clock,
        failpoints=Failpoints(),
        recover=nothing_to_recover,
        undelivered=lambda refs: None,
        demand=Demand(slots=slots, index=index),
    )
    now = datetime.now(UTC)
    for number in (1, 2):
        index.swept([DueJob(3, now - timedelta(seconds=number), number << 12, 0, 7)], clock.now_ms())
        claimer.turn()
        await claimer.stop()
    assert store.answered.is_set()
