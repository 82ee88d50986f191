"""Liveness of workers: who may connect, whose lease is renewed, and when a silent one may be taken for dead.

One lease row per incarnation of a worker, renewed in batches by whichever node hears it. Three rules keep the living
alive. An owner never reaps a worker that it hears itself. Reaping by lease starts only after this node's renewals have
worked for one full lease since they last resumed: neither an outage of the database nor a jump of its clock counts as
silence of a worker. And a lease counts as over only if it was so at this node's latest renewal: if this process itself
is held up, for however long and at whatever instruction, leases that end meanwhile prove nothing.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from server.domain.ending import NO_LEASE
from server.engine.clock import DatabaseClock
from server.engine.loops import every
from server.engine.ports import OutcomeUnknown, StoreUnavailable, WorkerStore
from server.engine.slots import SlotBook, WorkerSession
from server.engine.timings import EngineTimings

log = logging.getLogger(__name__)


class WorkerRefused(Exception):
    """A worker may not connect; the text says why and what to do."""


class Liveness:
    """Keeps the leases of connected workers."""

    def __init__(self, *, store: WorkerStore, slots: SlotBook, clock: DatabaseClock, timings: EngineTimings) -> None:
        self._store = store
        self._slots = slots
        self._clock = clock
        self._timings = timings
        self._resumed_at: float | None = None
        self._renewed_at = 0.0
        self._renewed_as_of = NO_LEASE
        self._grace: dict[int, asyncio.Task[None]] = {}
        self._arriving: Counter[tuple[int, str]] = Counter()
        self._arrived_at: dict[tuple[int, str], float] = {}
        self.lost: set[int] = set()
        """Workers whose stream broke and that did not come back in time: their lease was ended on this evidence."""

    async def run(self) -> None:
        """Renew leases for ever."""
        await every(min(1.0, self._timings.heartbeat.total_seconds() / 2), "worker leases", self.renew)

    async def admit(self, namespace_id: int, name: str, incarnation: int, sdk: str, slots: Mapping[str, int]) -> int:
        """Start the lease of a worker and return its id; raises `WorkerRefused`.

        A newer incarnation supersedes older ones of its name unless one of them is connected and heard.
        """
        others = await self._store.other_incarnations(namespace_id, name, incarnation)
        if any(self._slots.heard(other) for other in others):
            raise WorkerRefused(
                f"worker {name!r} is already connected as another incarnation: give each worker its own name, "
                "or stop the other one first"
            )
        if others:
            await self._store.end_workers(others, "superseded")
            log.info("worker superseded by a newer incarnation", extra={"worker": name, "older": others})
        lease = self._timings.worker_lease
        worker_id = await self._store.register_worker(namespace_id, name, incarnation, sdk, slots, lease)
        if worker_id is None:
            raise WorkerRefused(
                f"this incarnation of worker {name!r} was superseded or has said goodbye: start it again "
                "with a new incarnation"
            )
        return worker_id

    @contextmanager
    def arriving(self, namespace_id: int, name: str) -> Iterator[None]:
        """While a worker of this name is being admitted, which may take long, and a grace longer, it is not lost."""
        key = (namespace_id, name)
        self._arriving[key] += 1
        try:
            yield
        finally:
            self._arriving[key] -= 1
            if not self._arriving[key]:
                del self._arriving[key]
            now, grace = time.monotonic(), self._timings.reset_grace.total_seconds()
            self._arrived_at = {one: at for one, at in self._arrived_at.items() if now - at < grace}
            self._arrived_at[key] = now

    def attached(self, worker_id: int) -> None:
        """A worker is connected: it came back, if it was awaited."""
        self.lost.discard(worker_id)
        task = self._grace.pop(worker_id, None)
        if task is not None:
            task.cancel()

    def stream_lost(self, session: WorkerSession) -> None:
        """A stream broke without goodbye: give the worker its time to come back, then end its lease."""
        worker_id = session.worker_id
        if worker_id in self._grace or self._slots.of_worker(worker_id) is not None:
            return
        task = asyncio.create_task(self._after_grace(session), name=f"grace-{worker_id}")
        self._grace[worker_id] = task
        task.add_done_callback(lambda done: self._grace_over(worker_id, done))

    async def goodbye(self, worker_id: int, reason: str) -> None:
        """A worker stopped: what it still held goes back at once."""
        await self._store.end_workers([worker_id], reason or "goodbye")

    async def renew(self) -> None:
        """Renew the leases of the workers that were heard lately."""
        sent = time.monotonic()
        try:
            now = await self._store.renew_workers(self._slots.heard_workers(), self._timings.worker_lease)
        except (StoreUnavailable, OutcomeUnknown):
            self._resumed_at = None
            raise
        received = time.monotonic()
        self._clock.observe(now, sent, received)
        stalled = received - self._renewed_at > self._timings.worker_lease.total_seconds() / 2
        if self._resumed_at is None or stalled:
            self._resumed_at = received
        self._renewed_at, self._renewed_as_of = received, now

    def leases_judged_until(self) -> datetime:
        """Return the database time at which a lease has to have been over to prove silence.

        It is that of the latest renewal, if for a full lease before it renewals have worked and no clock has jumped;
        else `NO_LEASE`.
        """
        if self._resumed_at is None:
            return NO_LEASE
        since = max(self._resumed_at, self._clock.jumped_at)
        long_enough = self._renewed_at - since >= self._timings.worker_lease.total_seconds()
        return self._renewed_as_of if long_enough else NO_LEASE

    def may_reap_by_lease(self) -> bool:
        """Whether any lease may be taken for over."""
        return self.leases_judged_until() != NO_LEASE

    def stop(self) -> None:
        """Cancel the waits for lost workers."""
        for task in list(self._grace.values()):
            task.cancel()

    async def _after_grace(self, session: WorkerSession) -> None:
        """End the lease of a worker that does not come back within the grace.

        Only time in which it could have come back counts: the grace starts anew when this process was held up, while
        the database is away, for then nobody can be admitted, and when the worker is at the door.
        """
        worker_id, name = session.worker_id, session.name
        key = (session.namespace_id, name)
        grace = self._timings.reset_grace.total_seconds()
        step, waited = grace / 10, 0.0
        while self._slots.of_worker(worker_id) is None:
            if waited < grace:
                before = time.monotonic()
                await asyncio.sleep(step)
                held_up = time.monotonic() - before > step + grace / 2
                here = key in self._arriving or self._arrived_at.get(key, 0.0) >= before
                waited = 0.0 if held_up or here or self._resumed_at is None else waited + step
                continue
            try:
                await self._store.expire_worker_lease(worker_id)
            except (StoreUnavailable, OutcomeUnknown):
                waited = 0.0
                continue
            self.lost.add(worker_id)
            log.info("worker lost: its stream broke and it did not come back", extra={"worker": name})
            return

    def _grace_over(self, worker_id: int, task: asyncio.Task[None]) -> None:
        if self._grace.get(worker_id) is task:
            del self._grace[worker_id]
        if not task.cancelled() and task.exception() is not None:
            log.error("wait for a lost worker failed", exc_info=task.exception())
