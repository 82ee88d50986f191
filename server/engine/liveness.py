"""Liveness of workers: who may connect, whose lease is renewed, and when a silent one may be taken for dead.

One lease row per incarnation of a worker, renewed in batches by whichever node hears it. Three rules keep the living
alive. An owner never reaps a worker that it hears itself. Reaping by lease starts only after this node's renewals have
worked for one full lease since they last resumed: neither an outage of the database nor a jump of its clock counts as
silence of a worker. And a lease counts as over only if it was so at this node's latest renewal: if this process itself
is held up, for however long and at whatever instruction, leases that end meanwhile prove nothing.

A name belongs to one live incarnation in the whole cluster. A newer one takes over only if no node hears the older one.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TypeAlias
from weakref import WeakValueDictionary

from server.domain.ending import NO_LEASE
from server.domain.worker_lease import Admission
from server.engine.clock import DatabaseClock
from server.engine.loops import every
from server.engine.ports import OutcomeUnknown, StoreUnavailable, WorkerStore
from server.engine.resets import Resets
from server.engine.slots import SlotBook, WorkerSession
from server.engine.timings import EngineTimings

log = logging.getLogger(__name__)

Name: TypeAlias = tuple[int, str]
"""Namespace id and name of a worker."""


class WorkerRefused(Exception):
    """A worker may not connect; the text says why and what to do."""


class Liveness:
    """Keeps the leases of connected workers."""

    def __init__(
        self,
        *,
        store: WorkerStore,
        slots: SlotBook,
        clock: DatabaseClock,
        timings: EngineTimings,
        on_lost: Callable[[], None],
    ) -> None:
        """`on_lost` is called when workers were given up because their streams broke."""
        self._store = store
        self._slots = slots
        self._clock = clock
        self._timings = timings
        self._tick_s = min(1.0, timings.heartbeat.total_seconds() / 2)
        self._settling = timedelta(seconds=2.5 * self._tick_s)
        """A node that hears a worker has spoken for it after this time."""
        self._resumed_at: float | None = None
        self._renewed_at = 0.0
        self._renewed_as_of = NO_LEASE
        self._doors: WeakValueDictionary[Name, asyncio.Lock] = WeakValueDictionary()
        self._arriving: Counter[Name] = Counter()
        self._arrived_at: dict[Name, float] = {}
        self._expected: dict[int, tuple[Name, float]] = {}
        """Workers that were let in and are not connected yet, with the time of their admission."""
        self.alone: Callable[[], bool] = lambda: False
        """Whether this node is surely the only one of its cluster."""
        self.resets = Resets(
            store=store, slots=slots, timings=timings, may_return=self._may_still_return, on_lost=on_lost
        )

    async def run(self) -> None:
        """Renew leases for ever."""
        # No longer pauses while the database is away: once it is back, each node has to speak for its workers before
        # another one, whose renewals have worked for a lease, takes them for dead.
        await every(self._tick_s, "worker leases", self.renew, back_off_limit_s=self._tick_s)

    async def admit(
        self, namespace_id: int, name: str, incarnation: int, sdk: str, slots: Mapping[str, int], identity: str = ""
    ) -> int:
        """Start the lease of a worker and return its id; raises `WorkerRefused`.

        The incarnation belongs to the `identity` of the credential that it comes with first. A newer one supersedes the
        older one of its name unless that is connected to a node and heard. It takes up to 2.5 s until nodes have said
        so.
        """
        door = self._doors.setdefault((namespace_id, name), asyncio.Lock())
        async with door:
            began = time.monotonic()
            while True:
                admission = await self._store.admit_worker(
                    namespace_id,
                    name,
                    incarnation,
                    sdk,
                    slots,
                    self._timings.worker_lease,
                    identity=identity,
                    heard=self._heard_as((namespace_id, name)),
                    alone=self.alone(),
                    settling=self._settling,
                )
                if not self._worth_waiting(admission, time.monotonic() - began):
                    break
                await asyncio.sleep(self._tick_s / 4)
            if admission.superseded:
                older = list(admission.superseded)
                log.info("worker superseded by a newer incarnation", extra={"worker": name, "older": older})
            if admission.worker_id is not None:
                self._expected[admission.worker_id] = (namespace_id, name), time.monotonic()
                return admission.worker_id
        if admission.heard or admission.leased or admission.undecided:
            raise WorkerRefused(
                f"worker {name!r} is already connected as another incarnation: give each worker its own name, "
                "or stop the other one first"
            )
        raise WorkerRefused(
            f"this incarnation of worker {name!r} was superseded, has said goodbye or came with another credential: "
            "start it again with a new incarnation"
        )

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
        self._expected.pop(worker_id, None)
        self.resets.returned(worker_id)

    def stream_lost(self, session: WorkerSession) -> None:
        """A stream broke without goodbye: give the worker its time to come back, to whichever node."""
        self.resets.stream_lost(session)

    async def goodbye(self, worker_id: int, reason: str) -> None:
        """A worker stopped: what it still held goes back at once."""
        self.resets.returned(worker_id)
        await self._store.end_workers([worker_id], reason or "goodbye")

    async def renew(self) -> None:
        """Renew the leases of the workers that were heard lately, and part with those that have ended."""
        sent = time.monotonic()
        heard = {worker_id: timedelta(seconds=age) for worker_id, age in self._slots.heard_workers().items()}
        quiet = self._timings.heartbeat * 1.5
        try:
            renewal = await self._store.renew_workers(heard, self._timings.worker_lease, quiet)
        except (StoreUnavailable, OutcomeUnknown):
            self._resumed_at = None
            raise
        received = time.monotonic()
        self._clock.observe(renewal.now, sent, received)
        stalled = received - self._renewed_at > self._timings.worker_lease.total_seconds() / 2
        if self._resumed_at is None or stalled:
            self._resumed_at = received
        self._renewed_at, self._renewed_as_of = received, renewal.now
        for worker_id in renewal.ended:
            session = self._slots.of_worker(worker_id)
            if session is not None:
                log.info("stream closed: the worker's incarnation has ended", extra={"worker": session.name})
                session.link.close()

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
        """Doubt no worker any more: from now on streams end because this node stops."""
        self.resets.stop()

    def _worth_waiting(self, admission: Admission, waited_s: float) -> bool:
        """Whether another incarnation may turn out to be dead: its stream may have broken just now, elsewhere."""
        if admission.heard:
            return False
        if admission.leased:
            return waited_s < self._tick_s
        return admission.undecided and waited_s < self._settling.total_seconds() + 2 * self._tick_s

    def _heard_as(self, name: Name) -> list[int]:
        """Return the ids of the workers of a name that this node hears or has just let in."""
        now, patience = time.monotonic(), self._timings.reset_grace.total_seconds()
        self._expected = {one: (of, at) for one, (of, at) in self._expected.items() if now - at < patience}
        expected = [worker_id for worker_id, (of, _) in self._expected.items() if of == name]
        connected = [one for one in self._slots.sessions() if (one.namespace_id, one.name) == name]
        return expected + [one.worker_id for one in connected if self._slots.heard(one.worker_id)]

    def _may_still_return(self, session: WorkerSession, since: float) -> bool:
        """Whether time since then is none in which the worker failed to come back: nobody could, or it is here."""
        key = (session.namespace_id, session.name)
        return key in self._arriving or self._arrived_at.get(key, 0.0) >= since or self._resumed_at is None
