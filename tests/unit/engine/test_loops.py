"""Loops survive whatever their steps raise."""

import asyncio
import logging

import pytest

from server.engine.loops import Backoff, every
from server.engine.ports import OutcomeUnknown, StoreUnavailable


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), OutcomeUnknown("lost"), ValueError("bug"), KeyError("bug")]
)
async def test_loop_goes_on_after_an_error(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps in (1, 2):
            raise error
        if steps == 4:
            done.set()

    with caplog.at_level(logging.WARNING, logger="server.engine.loops"):
        task = asyncio.create_task(every(0.001, "the loop", step))
        await asyncio.wait_for(done.wait(), 5)
        task.cancel()
    # Once per streak, with the loop's name and the error.
    [record] = caplog.records
    assert getattr(record, "loop", None) == "the loop"
    assert str(error) in (getattr(record, "error", "") or str(record.exc_info))


async def test_a_later_streak_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            done.set()
        if steps % 2:
            raise StoreUnavailable("away")

    with caplog.at_level(logging.WARNING, logger="server.engine.loops"):
        task = asyncio.create_task(every(0.001, "the loop", step))
        await asyncio.wait_for(done.wait(), 5)
        task.cancel()
    assert len(caplog.records) == 3


async def test_another_error_of_the_same_streak_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    """A bug must not hide behind an outage of the database."""
    done = asyncio.Event()
    errors: list[Exception] = [StoreUnavailable("away"), StoreUnavailable("away"), ValueError("bug"), ValueError("bug")]

    async def step() -> None:
        if errors:
            raise errors.pop(0)
        done.set()

    with caplog.at_level(logging.WARNING, logger="server.engine.loops"):
        task = asyncio.create_task(every(0.001, "the loop", step))
        await asyncio.wait_for(done.wait(), 5)
        task.cancel()
    assert [record.message for record in caplog.records] == ["loop waits for the database", "loop step failed"]


async def test_loop_ends_when_it_is_cancelled() -> None:
    started = asyncio.Event()

    async def step() -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(every(0.001, "the loop", step))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_failures_are_not_repeated_faster_than_the_interval() -> None:
    times: list[float] = []
    enough = asyncio.Event()

    async def step() -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 3:
            enough.set()
        raise StoreUnavailable("away")

    task = asyncio.create_task(every(0.1, "the loop", step))
    await asyncio.wait_for(enough.wait(), 5)
    task.cancel()
    assert times[1] - times[0] >= 0.09
    assert times[2] - times[1] >= 0.09


def test_pauses_grow_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(first_s=0.1, limit_s=1.0)
    pauses = [backoff.next_s() for _ in range(2000)]
    for number, pause in enumerate(pauses):
        bound = min(1.0, 0.1 * 2 ** min(number, 20))
        assert bound / 2 <= pause <= bound
    assert backoff.failures == 2000
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_s() <= 0.1
