"""Orders that come again."""

import asyncio

import pytest

from server.api.order_memory import MAX_REMEMBERED, OrderMemory


class Work:
    """Counts how often it is done, and waits for leave."""

    def __init__(self) -> None:
        self.done = 0
        self.leave = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.done += 1
        number = self.done
        await self.leave.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_an_order_whose_answer_took_too_long_is_not_done_again() -> None:
    memory, work = OrderMemory(10.0), Work()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await memory.once("a", work)
    again = asyncio.create_task(memory.once("a", work))
    await asyncio.sleep(0)
    work.leave.set()
    assert await again == 1
    assert await memory.once("a", work) == 1
    assert await memory.once("b", work) == 2


async def test_a_failure_is_not_remembered() -> None:
    memory, work = OrderMemory(10.0), Work()
    work.leave.set()
    work.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        await memory.once("a", work)
    work.error = None
    assert await memory.once("a", work) == 2


async def test_what_takes_too_long_ends() -> None:
    memory, work = OrderMemory(0.01), Work()
    with pytest.raises(TimeoutError):
        await memory.once("a", work)
    work.leave.set()
    assert await memory.once("a", work) == 2


async def test_only_the_latest_are_remembered() -> None:
    memory, work = OrderMemory(10.0), Work()
    work.leave.set()
    for number in range(MAX_REMEMBERED + 1):
        await memory.once(str(number), work)
    assert await memory.once(str(MAX_REMEMBERED), work) == MAX_REMEMBERED + 1
    assert await memory.once("0", work) == MAX_REMEMBERED + 2
