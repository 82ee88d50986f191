"""Results that come in a call of their own instead of a session: whoever calls waits for their fate."""

import asyncio
from collections.abc import Iterable, Sequence

from server.domain.job import AttemptRef
from server.domain.outcome import AckStatus


class FinishCall:
    """Collects the acknowledgements of one call's results."""

    def __init__(self, worker_id: int, refs: Iterable[AttemptRef]) -> None:
        self.worker_id = worker_id
        self.acks: dict[AttemptRef, AckStatus] = {}
        self._pending = set(refs)
        self._done = asyncio.Event()

    def acknowledge(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        """Take in the fate of results."""
        self.acks.update(acks)
        self._pending.difference_update(self.acks)
        if not self._pending:
            self._done.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until every result is stored or refused; return whether that happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            return False
        return True
