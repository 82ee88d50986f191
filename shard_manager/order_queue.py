"""Orders on their way to the leader's next round, each with somebody waiting for its answer."""

import asyncio
from dataclasses import dataclass

from shard_manager.steering import Given, PlanChange


@dataclass(slots=True, eq=False)
class Waiting:
    """An order and the future that its giver waits on."""

    given: Given
    answer: asyncio.Future[PlanChange]


class OrderQueue:
    """First come, first served. An order whose giver has gone away is dropped, unless its round has begun."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    async def give(self, given: Given) -> PlanChange:
        """Wait for the answer, for as long as the caller likes. Raises what the order was answered with."""
        waiting = Waiting(given, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            return await waiting.answer
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def first(self) -> Waiting | None:
        """The order whose turn it is; it stays in the queue until it is answered, so a failed round repeats it."""
        return self._waiting[0] if self._waiting else None

    def answer(self, waiting: Waiting, answer: PlanChange | Exception) -> None:
        """Tell the giver, who may have gone."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if waiting.answer.done():
            return
        if isinstance(answer, Exception):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)

    def refuse(self, error: Exception) -> None:
        """Answer all with `error`."""
        for waiting in list(self._waiting):
            self.answer(waiting, error)
