"""A worker whose jobs fail until they are healed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from worker_sdk import NonRetryable, Worker


class Clinic:
    """`healed` says whether jobs of the handler "heal" succeed from now on."""

    def __init__(self) -> None:
        self.healed = False


@contextlib.asynccontextmanager
async def clinic(address: str) -> AsyncIterator[Clinic]:
    """A running worker with the handlers "heal" and "greet"."""
    state = Clinic()
    worker = Worker(address, name="clinic-1")

    @worker.handler("heal", max_concurrency=4)
    async def heal(patient: object) -> str:
        if not state.healed:
            raise NonRetryable("no cure yet <b>for this</b>")
        return "cured"

    @worker.handler("greet", max_concurrency=4)
    async def greet(whom: object) -> str:
        return "hello"

    await asyncio.to_thread(worker.start)
    try:
        yield state
    finally:
        await asyncio.to_thread(worker.stop)
