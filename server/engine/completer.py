"""The completer: stores what workers report, in batches, and acknowledges it after the commit.

Results wait in a queue; each flush takes all that has gathered while the one before was under way. A flush that fails
is tried again until the database takes it; the worker keeps its results as well, until they are acknowledged.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from server.domain.job import AttemptRef
from server.domain.outcome import AckStatus, Committed, Completed, Decision, Outcome, completed, decide, needs_facts
from server.domain.sharding import shard_of_id
from server.engine.ender import Ender
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.ports import EndingStore, OutcomeUnknown, StoreUnavailable
from server.engine.slots import SlotBook, WorkerSession

log = logging.getLogger(__name__)

MAX_FLUSH: Final = 2000
FLUSHERS: Final = 2


@dataclass(frozen=True, slots=True)
class Reported:
    """One result as a session brought it."""

    session: WorkerSession
    ref: AttemptRef
    outcome: Outcome


class Completer:
    """Stores results; see the module."""

    def __init__(self, *, store: EndingStore, ownership: Ownership, slots: SlotBook, ender: Ender) -> None:
        self._store = store
        self._ownership = ownership
        self._slots = slots
        self._ender = ender
        self._queue: deque[Reported] = deque()
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._busy = 0
        self.acks: dict[AckStatus, int] = dict.fromkeys(AckStatus, 0)

    def submit(self, session: WorkerSession, results: Sequence[tuple[AttemptRef, Outcome]]) -> None:
        """Take in results; their slots are free at once."""
        for ref, outcome in results:
            self._slots.returned(session.worker_id, ref)
            self._queue.append(Reported(session, ref, outcome))
        self._wake.set()

    async def settle(self, timeout_s: float) -> bool:
        """Wait until every result that came in is stored; return whether that happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._queue or self._busy:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Store results for ever."""
        backoff = Backoff()
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_FLUSH))]
            self._busy += 1
            try:
                await self._flush(batch)
                backoff.reset()
            except (StoreUnavailable, OutcomeUnknown) as error:
                if not backoff.failures:
                    log.warning("results wait for the database", extra={"error": str(error), "results": len(batch)})
                self._queue.extendleft(reversed(batch))
                await asyncio.sleep(backoff.next_s())
            except Exception:
                log.exception("results could not be stored", extra={"results": len(batch)})
                self._queue.extend(batch)
                await asyncio.sleep(backoff.next_s())
            finally:
                self._busy -= 1
                self._settled.set()

    async def _flush(self, batch: list[Reported]) -> None:
        by_partition: dict[int, dict[AttemptRef, Reported]] = {}
        for one in batch:
            partition = self._ownership.partition_of[shard_of_id(one.ref.job_id)]
            by_partition.setdefault(partition, {}).setdefault(one.ref, one)
        for partition, reported in by_partition.items():
            await self._flush_partition(partition, reported)

    async def _flush_partition(self, partition: int, reported: dict[AttemptRef, Reported]) -> None:
        accepted = await self._end(partition, reported)
        left = {ref: one for ref, one in reported.items() if ref not in accepted and needs_facts(one.outcome)}
        if left:
            # Stale as a rule; but a cancel may have come after the facts were read, and is among them now.
            accepted |= await self._end(partition, left)
        await self._acknowledge(partition, reported, accepted)

    async def _end(self, partition: int, reported: dict[AttemptRef, Reported]) -> set[AttemptRef]:
        decisions: list[Decision] = []
        others = []
        for ref, one in reported.items():
            if isinstance(one.outcome, Completed):
                decisions.append(completed(ref, one.outcome))
            else:
                others.append(ref)
        if others:
            now, facts = await self._store.load_facts(partition, others)
            if now is not None:
                decisions += [decide(reported[ref].outcome, one, now, random.random) for ref, one in facts.items()]
        return await self._ender.end(partition, decisions) if decisions else set()

    async def _acknowledge(
        self, partition: int, reported: dict[AttemptRef, Reported], accepted: set[AttemptRef]
    ) -> None:
        rejected = [ref for ref in reported if ref not in accepted]
        there = await self._store.still_there(partition, [ref.job_id for ref in rejected]) if rejected else set()
        outgoing: dict[WorkerSession, list[tuple[AttemptRef, AckStatus]]] = {}
        for ref, one in reported.items():
            status = AckStatus.ACCEPTED
            if ref not in accepted:
                gone = ref.job_id not in there
                status = AckStatus.DUPLICATE if gone else AckStatus.STALE
                if gone and isinstance(one.outcome, Committed):
                    status = AckStatus.ACCEPTED
                self._ender.gone(ref, job_final=gone)
            self.acks[status] += 1
            outgoing.setdefault(one.session, []).append((ref, status))
        for session, acks in outgoing.items():
            session.link.send_acks(acks)
