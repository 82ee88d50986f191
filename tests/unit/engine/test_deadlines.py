"""Attempts are told on time that their time is over."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from server.domain.job import AttemptRef
from server.engine.clock import DatabaseClock
from server.engine.deadlines import Deadlines
from server.engine.registry import Registry, RunningEntry
from tests.support.waiting import eventually

MS = timedelta(milliseconds=1)


class Watched:
    """Deadlines with their registry, and what they told when."""

    def __init__(self, capacity: int = 100, over: Callable[[RunningEntry], None] | None = None) -> None:
        self.clock = DatabaseClock()
        self.registry = Registry()
        self.told: list[int] = []
        self.early = False
        self._over = over
        self.deadlines = Deadlines(registry=self.registry, clock=self.clock, over=self._tell, capacity=capacity)

    def _tell(self, entry: RunningEntry) -> None:
        self.told.append(entry.ref.job_id)
        assert entry.timeout_at is not None
        self.early = self.early or self.clock.now() < entry.timeout_at - MS
        if self._over is not None:
            self._over(entry)

    def run_for(self, job_id: int, ms: float | None) -> AttemptRef:
        timeout_at = None if ms is None else self.clock.now() + ms * MS
        entry = RunningEntry(
            ref=AttemptRef(job_id, 1), shard=0, handler_id=1, worker_id=1, claim_epoch=1, timeout_at=timeout_at,
            session_id=1,
        )  # fmt: skip
        self.registry.add(entry)
        self.deadlines.watch(entry)
        return entry.ref

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.deadlines.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()


async def test_attempts_are_told_in_time_and_none_early() -> None:
    watched = Watched()
    async with watched.running():
        watched.run_for(1, 60_000)
        # Nearer ones that come later wake the loop.
        watched.run_for(2, 60)
        watched.run_for(3, 20)
        watched.run_for(4, None)
        await eventually(lambda: len(watched.told) == 2, timeout_s=2, what="both are told")
    assert (watched.told, watched.early) == ([3, 2], False)


async def test_what_has_ended_is_not_told() -> None:
    watched = Watched()
    async with watched.running():
        ended = watched.run_for(1, 10)
        forgotten = watched.run_for(2, 10)
        watched.run_for(3, 30)
        watched.registry.remove(ended)
        watched.deadlines.forget(forgotten)
        watched.deadlines.forget(AttemptRef(99, 1))
        await eventually(lambda: watched.told, timeout_s=2, what="the third is told")
    assert watched.told == [3]


async def test_forgotten_attempts_make_room() -> None:
    """Or those that ended long before their time would take it from those that run."""
    watched = Watched(capacity=2)
    async with watched.running():
        for number in range(50):
            watched.deadlines.forget(watched.run_for(number, 60_000))
        watched.run_for(100, 10)
        await eventually(lambda: watched.told, timeout_s=2, what="the last one is told")
    assert watched.told == [100]


async def test_without_room_nothing_breaks() -> None:
    watched = Watched(capacity=1)
    async with watched.running():
        watched.run_for(1, 20)
        watched.run_for(2, 10)
        await eventually(lambda: watched.told, timeout_s=2, what="the first is told")
    assert watched.told == [1]


async def test_an_error_of_one_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail(entry: RunningEntry) -> None:
        if entry.ref.job_id == 1:
            raise ValueError("bug")

    watched = Watched(over=fail)
    with caplog.at_level(logging.ERROR, logger="server.engine.deadlines"):
        async with watched.running():
            watched.run_for(1, 5)
            watched.run_for(2, 5)
            watched.run_for(3, 30)
            await eventually(lambda: len(watched.told) == 3, timeout_s=2, what="all are told")
    assert [getattr(record, "job_id", None) for record in caplog.records] == [1]
