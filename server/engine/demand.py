"""Tells workers how many due jobs wait here, so that they grant slots to this node which others do not need.

Workers are told now and then, and at once when jobs begin to wait for slots that workers have granted to other nodes.
"""

import asyncio

from server.engine.due_index import DueIndex
from server.engine.loops import every
from server.engine.slots import SlotBook

_INTERVAL_S = 0.5
_LEAST_S = 0.02


class Demand:
    """What workers were told of waiting jobs; see the module."""

    def __init__(self, *, slots: SlotBook, index: DueIndex) -> None:
        self._slots = slots
        self._index = index
        self._left: dict[int, int] = {}
        """Jobs by handler that workers were told of, less those that were handed out since."""
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Tell workers for ever."""
        await every(_INTERVAL_S, "demand", self.tell, wake=self._wake, least_s=_LEAST_S)

    def look(self, handler_id: int) -> None:
        """Due jobs of a handler may be waiting for a slot: tell workers if they do not know and can do something."""
        if self._left.get(handler_id, 0) <= 0 and self._index.waiting(handler_id) and self._slots.shared(handler_id):
            self._wake.set()

    def served(self, handler_id: int, jobs: int) -> None:
        """So many jobs of a handler were handed out."""
        self._left[handler_id] = self._left.get(handler_id, 0) - jobs

    async def tell(self) -> None:
        """Tell every worker how many jobs wait for each of its handlers."""
        waiting = {handler_id: self._index.waiting(handler_id) for handler_id in self._slots.handlers()}
        self._left = dict(waiting)
        for session in self._slots.sessions():
            own = [(one, waiting[one]) for one in session.registered if waiting.get(one)]
            if own or session.told_demand:
                session.told_demand = bool(own)
                session.link.send_demand(own)
