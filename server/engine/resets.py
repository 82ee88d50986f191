"""Workers whose stream to this node broke without a goodbye: they have a while to come back, to any node.

The row of the worker holds what the nodes know together. A node whose stream broke puts its doubt there; a node that
still hears the worker takes it out with its next renewal; so does whichever node the worker comes back to. A doubt that
stood for the whole grace proves that the worker has a stream to no node, and it is given up, whatever its lease says:
so a killed worker is lost soon, although a node may have renewed its lease the moment before, and one that is cut off
from a single node is not lost at all.

Only time in which the worker could have come back counts: the grace starts anew when this process was held up, while
the database is away, for then nobody can be admitted, and when the worker is at this node's door.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.engine.loops import Backoff
from server.engine.ports import OutcomeUnknown, StoreUnavailable, WorkerStore
from server.engine.slots import SlotBook, WorkerSession
from server.engine.timings import EngineTimings

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Broken:
    """A worker whose stream broke."""

    session: WorkerSession
    noted: bool = False
    """Whether the doubt is in the database."""
    waited_s: float = 0.0
    """Time that counts for the grace."""
    settled_s: float = 0.0
    """Time since the grace was over, in which other nodes' doubts may still be too young."""


class Resets:
    """Waits for workers whose stream broke; see the module."""

    def __init__(
        self,
        *,
        store: WorkerStore,
        slots: SlotBook,
        timings: EngineTimings,
        may_return: Callable[[WorkerSession, float], bool],
        on_lost: Callable[[], None],
    ) -> None:
        """`may_return` says whether a worker was at the door since a monotonic time, or could not have come;
        `on_lost` is called when workers were given up."""
        self._store = store
        self._slots = slots
        self._grace = timings.reset_grace
        self._grace_s = timings.reset_grace.total_seconds()
        self._step_s = min(0.1, self._grace_s / 10)
        self._may_return = may_return
        self._on_lost = on_lost
        self._broken: dict[int, Broken] = {}
        self._wake = asyncio.Event()
        self._stopped = False

    def stream_lost(self, session: WorkerSession) -> None:
        """A stream broke without goodbye."""
        if self._stopped or self._slots.of_worker(session.worker_id) is not None:
            return
        self._broken[session.worker_id] = Broken(session)
        self._wake.set()

    def returned(self, worker_id: int) -> None:
        """A worker is connected here, or has said goodbye."""
        self._broken.pop(worker_id, None)

    def stop(self) -> None:
        """Doubt nobody any more: from now on streams end because this node stops."""
        self._stopped = True
        self._broken.clear()

    async def run(self) -> None:
        """Wait for workers, for ever."""
        backoff = Backoff()
        failing = False
        while True:
            if not self._broken:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._note()
                await self._wait()
                await self._give_up()
                backoff.reset()
                failing = False
            except (StoreUnavailable, OutcomeUnknown) as error:
                if not failing:
                    log.warning("broken streams wait for the database", extra={"error": str(error)})
                failing = True
                await self._start_over(backoff.next_s())
            except Exception:
                log.exception("waiting for workers failed")
                await self._start_over(backoff.next_s())

    async def _start_over(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        for one in self._broken.values():
            one.waited_s = one.settled_s = 0.0

    async def _note(self) -> None:
        """Put new doubts into the database."""
        new = [worker_id for worker_id, one in self._broken.items() if not one.noted]
        if new:
            await self._store.doubt_workers(new)
        for worker_id in new:
            if (one := self._broken.get(worker_id)) is not None:
                one.noted = True

    async def _wait(self) -> None:
        before = time.monotonic()
        await asyncio.sleep(self._step_s)
        took = time.monotonic() - before
        held_up = took > self._step_s + self._grace_s / 2
        for one in self._broken.values():
            if not one.noted:
                continue
            if held_up or self._may_return(one.session, before):
                one.waited_s = one.settled_s = 0.0
            elif one.waited_s < self._grace_s:
                one.waited_s += min(took, 2 * self._step_s)
            else:
                one.settled_s += took

    async def _give_up(self) -> None:
        """Give up the workers that came back to no node within the grace, and stop waiting for those that did."""
        over = [worker_id for worker_id, one in self._broken.items() if one.waited_s >= self._grace_s]
        if not over:
            return
        losses = await self._store.lose_workers(over, self._grace)
        for worker_id in over:
            one = self._broken.get(worker_id)
            if one is None:
                continue
            if worker_id in losses.lost:
                log.info("worker lost: its streams broke and it did not come back", extra={"worker": one.session.name})
                del self._broken[worker_id]
            elif worker_id not in losses.in_doubt and one.settled_s >= self._grace_s / 2:
                # Not at once: in the moment in which the streams broke, another node may have spoken for the worker
                # before its own stream was gone, too.
                log.info("worker out of reach, another node hears it", extra={"worker": one.session.name})
                del self._broken[worker_id]
        if losses.lost:
            self._on_lost()
