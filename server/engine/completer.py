"""The completer: stores what workers report, in batches, and acknowledges it after the commit.

Results wait in a queue; each flush takes all that has gathered while the one before was under way, and stores it by
partition, in statements of bounded size. What fails is tried again until the database takes it, in smaller statements,
and after a pause that holds up its own partition alone. A result that cannot be stored for a reason of its own is
singled out, and the others are stored. The worker keeps its results as well, until they are acknowledged.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from server.domain.job import AttemptRef
from server.domain.outcome import (
    MAX_ERROR_MESSAGE_CHARS,
    AckStatus,
    AttemptFacts,
    Committed,
    Completed,
    Decision,
    Failed,
    Outcome,
    completed,
    decide,
    needs_facts,
)
from server.engine.ender import Ender
from server.engine.loops import Backoff
from server.engine.ownership import Ownership
from server.engine.ports import EndingStore, OutcomeUnknown, StoreUnavailable
from server.engine.slots import SlotBook

log = logging.getLogger(__name__)

MAX_FLUSH: Final = 2000
# A statement carries at most this many bytes (or one result): a larger one might never end in its time.
MAX_STATEMENT_BYTES: Final = 4 << 20
# Nor might one that moves many large payloads to the history: so many results go into one after 0, 1, more failures.
STATEMENT_RESULTS: Final = (MAX_FLUSH, 64, 16)
FLUSHERS: Final = 2
# Results that wait to be stored hold up new jobs for their workers beyond this size.
MAX_WAITING_BYTES: Final = 64 << 20


class Reporter(Protocol):
    """Whoever brings results: a worker's session, or a call of its own."""

    worker_id: int

    def acknowledge(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None:
        """Take in the fate of results."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One result, and who brought it."""

    session: Reporter
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
        self._held: dict[int, list[Reported]] = {}
        """Results of partitions that the database did not take lately, until they are tried again."""
        self._backoffs: dict[int, Backoff] = {}
        self._wake = asyncio.Event()
        self._waiting_bytes = 0
        """Bytes of results that are not stored yet, at least; repeated ones count until everything is stored."""
        self._settled = asyncio.Event()
        self._busy = 0
        self.acks: dict[AckStatus, int] = dict.fromkeys(AckStatus, 0)

    def submit(self, session: Reporter, results: Sequence[tuple[AttemptRef, Outcome]]) -> None:
        """Take in results. Their slots are free at once, or when they are stored if too much waits to be stored."""
        for ref, outcome in results:
            if self._waiting_bytes < MAX_WAITING_BYTES:
                self._slots.returned(session.worker_id, ref)
            self._waiting_bytes += _size(outcome)
            self._queue.append(Reported(session, ref, outcome))
        self._wake.set()

    async def settle(self, timeout_s: float) -> bool:
        """Wait until every result that came in is stored; return whether that happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._queue or self._held or self._busy:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Store results for ever."""
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_FLUSH))]
            self._busy += 1
            try:
                await self._flush(batch)
            finally:
                self._busy -= 1
                if not (self._queue or self._held or self._busy):
                    self._waiting_bytes = 0
                self._settled.set()

    async def _flush(self, batch: list[Reported]) -> None:
        by_partition: dict[int, dict[AttemptRef, Reported]] = {}
        for one in batch:
            partition = self._ownership.partition_of_job(one.ref.job_id)
            if partition is None:
                # There never was such a job: no row, as with one that has left.
                self._send_acks([(one, AckStatus.DUPLICATE)])
            else:
                first = by_partition.setdefault(partition, {}).setdefault(one.ref, one)
                if first.session.worker_id != one.session.worker_id:
                    # Only one of the two has the attempt; the other one's turn comes with the next batch.
                    self._queue.append(one)
        for partition, reported in by_partition.items():
            if partition in self._held:
                self._held[partition].extend(reported.values())
                continue
            left: list[Reported] = []
            failures = backoff.failures if (backoff := self._backoffs.get(partition)) is not None else 0
            most = STATEMENT_RESULTS[min(failures, len(STATEMENT_RESULTS) - 1)]
            for chunk in _chunks(list(reported.values()), most):
                left += chunk if left else await self._try(partition, chunk)
            if left:
                self._hold(partition, left)
            else:
                self._backoffs.pop(partition, None)

    async def _try(self, partition: int, chunk: list[Reported]) -> list[Reported]:
        """Store results of a partition; return those that have to be tried again."""
        try:
            await self._flush_partition(partition, {one.ref: one for one in chunk})
        except (StoreUnavailable, OutcomeUnknown) as error:
            if not self._backoffs:
                log.warning("results wait for the database", extra={"error": str(error), "results": len(chunk)})
            return chunk
        except Exception:
            if len(chunk) == 1:
                ref = chunk[0].ref
                log.exception("a result could not be stored", extra={"job_id": ref.job_id, "claim": ref.claim})
                return chunk
            middle = len(chunk) // 2
            return await self._try(partition, chunk[:middle]) + await self._try(partition, chunk[middle:])
        return []

    def _hold(self, partition: int, left: list[Reported]) -> None:
        """Try results of a partition again later, and meanwhile no others of it."""
        self._held.setdefault(partition, []).extend(left)
        pause = self._backoffs.setdefault(partition, Backoff()).next_s()
        asyncio.get_running_loop().call_later(pause, self._resume, partition)

    def _resume(self, partition: int) -> None:
        self._queue.extend(self._held.pop(partition, ()))
        self._wake.set()

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
                decisions.append(completed(ref, one.outcome, one.session.worker_id))
            else:
                others.append(ref)
        if others:
            now, facts = await self._store.load_facts(partition, others)
            if now is not None:
                decisions += [_decided(reported[ref], one, now) for ref, one in facts.items()]
        return await self._ender.end(partition, decisions) if decisions else set()

    async def _acknowledge(
        self, partition: int, reported: dict[AttemptRef, Reported], accepted: set[AttemptRef]
    ) -> None:
        rejected = [ref for ref in reported if ref not in accepted]
        there = await self._store.still_there(partition, [ref.job_id for ref in rejected]) if rejected else {}
        acks = []
        for ref, one in reported.items():
            status = AckStatus.ACCEPTED
            if ref not in accepted:
                gone = ref.job_id not in there
                status = AckStatus.DUPLICATE if gone else AckStatus.STALE
                if gone and isinstance(one.outcome, Committed):
                    status = AckStatus.ACCEPTED
                if there.get(ref.job_id) != ref.claim:
                    # Else it runs on, at the worker whose it is.
                    self._ender.gone(ref, job_final=gone)
            acks.append((one, status))
        self._send_acks(acks)

    def _send_acks(self, acks: Sequence[tuple[Reported, AckStatus]]) -> None:
        outgoing: dict[Reporter, list[tuple[AttemptRef, AckStatus]]] = {}
        for one, status in acks:
            self._waiting_bytes = max(0, self._waiting_bytes - _size(one.outcome))
            self._slots.returned(one.session.worker_id, one.ref)
            self.acks[status] += 1
            outgoing.setdefault(one.session, []).append((one.ref, status))
        for session, own in outgoing.items():
            session.acknowledge(own)


def _decided(one: Reported, facts: AttemptFacts, now: datetime) -> Decision:
    return replace(decide(one.outcome, facts, now, random.random), worker_id=one.session.worker_id)


def _chunks(reported: Sequence[Reported], most: int) -> Iterator[list[Reported]]:
    """Cut results into statements of at most `most` of them."""
    chunk: list[Reported] = []
    size = 0
    for one in reported:
        own = _size(one.outcome)
        if chunk and (len(chunk) >= most or size + own > MAX_STATEMENT_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(one)
        size += own
    if chunk:
        yield chunk


def _size(outcome: Outcome) -> int:
    match outcome:
        case Completed():
            return len(outcome.result)
        case Failed():
            return min(len(outcome.message), MAX_ERROR_MESSAGE_CHARS)
        case _:
            return 0
