"""The engine of one node: owns shards, claims what is due in them, hands it to workers, and ends attempts.

Data flow: nudges, sweeps and the timer wheel say what is due; the claimer binds due jobs to free slots in the database
and sends them; results come back to the completer, which stores them and acknowledges. The reaper, the keeper and the
adoption repair whatever a dying process, a lost message or an unknown commit leaves behind. All state here is a cache:
killing the process at any instruction loses nothing.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from server.domain.dispatch import Dispatch, DispatchMode, is_queue_lease
from server.domain.due import DueJob
from server.domain.handler import HandlerView
from server.domain.job import AttemptRef
from server.domain.outcome import Outcome
from server.domain.sharding import shard_of_id
from server.domain.starting import Started
from server.engine.adoption import Adoption
from server.engine.cancels import Cancels
from server.engine.claimer import Claimer
from server.engine.clock import DatabaseClock
from server.engine.completer import FLUSHERS, Completer, Reporter
from server.engine.deadlines import Deadlines
from server.engine.demand import Demand
from server.engine.due_index import DueIndex
from server.engine.ender import Ender
from server.engine.failpoints import Failpoints
from server.engine.firer import Firer
from server.engine.keeper import Keeper
from server.engine.liveness import Liveness
from server.engine.loops import every
from server.engine.ownership import Ownership
from server.engine.parking import Parking
from server.engine.peer_news import PeerNews
from server.engine.ports import EngineStore, OutcomeUnknown, StoreUnavailable
from server.engine.ports_firer import FirerStore
from server.engine.ports_peers import (
    AttemptStarted,
    HandlersChanged,
    JobWatched,
    KeyFreed,
    NoPeers,
    Peers,
    ScheduleChanged,
)
from server.engine.queues import Queues
from server.engine.reaper import Reaper
from server.engine.registry import Registry, RunningEntry
from server.engine.shard_runner import ShardRunner
from server.engine.slots import SlotBook, WorkerSession
from server.engine.timings import EngineTimings
from server.engine.waiters import Waiter, Waiters

log = logging.getLogger(__name__)


class Engine:
    """Puts the engine's parts together and is their face to the API and the shard manager."""

    def __init__(
        self,
        store: EngineStore,
        firing: FirerStore,
        partition_of: Sequence[int],
        timings: EngineTimings,
        peers: Peers | None = None,
    ) -> None:
        silence_s = 2 * timings.heartbeat.total_seconds() + 1.0
        self.timings = timings
        self.clock = DatabaseClock()
        self.failpoints = Failpoints()
        self.ownership = Ownership(partition_of)
        self.slots = SlotBook(silence_s=silence_s)
        self.index = DueIndex()
        self.registry = Registry()
        self.waiters = Waiters()
        self._store = store
        self._peers = peers or NoPeers()
        self.cancels = Cancels(self.slots, self._peers)
        self._tasks: list[asyncio.Task[None]] = []
        self._give_backs: set[asyncio.Task[None]] = set()
        self._reap_now = asyncio.Event()
        self.queues = Queues(
            slots=self.slots, registry=self.registry, ownership=self.ownership, wake=lambda: self.claimer.wake()
        )
        self.firer = Firer(
            store=firing,
            ownership=self.ownership,
            clock=self.clock,
            on_jobs=self.jobs_added,
            failpoints=self.failpoints,
        )
        self.parking = Parking(store=store, ownership=self.ownership, pending=self.jobs_added)
        self.deadlines = Deadlines(registry=self.registry, clock=self.clock, over=self._over_time)
        self.ender = Ender(
            store=store,
            ownership=self.ownership,
            registry=self.registry,
            deadlines=self.deadlines,
            slots=self.slots,
            waiters=self.waiters,
            pending=self.jobs_added,
            key_freed=self.key_freed,
            peers=self._peers,
            attempt_ended=self.queues.attempt_ended,
        )
        self.adoption = Adoption(
            store=store,
            ownership=self.ownership,
            registry=self.registry,
            slots=self.slots,
            ender=self.ender,
            deadlines=self.deadlines,
            peers=self._peers,
            lost=self.give_back,
        )
        self.shards = ShardRunner(
            store=store,
            ownership=self.ownership,
            registry=self.registry,
            index=self.index,
            adoption=self.adoption,
            started=self._shard_started,
            stopped=self._shard_stopped,
            give_back=self.give_back,
        )
        self.demand = Demand(slots=self.slots, index=self.index)
        self.claimer = Claimer(
            store=store,
            ownership=self.ownership,
            slots=self.slots,
            index=self.index,
            registry=self.registry,
            deadlines=self.deadlines,
            clock=self.clock,
            failpoints=self.failpoints,
            recover=self.shards.recover,
            undelivered=self.give_back,
            demand=self.demand,
        )
        self.completer = Completer(store=store, ownership=self.ownership, slots=self.slots, ender=self.ender)
        self.liveness = Liveness(
            store=store, slots=self.slots, clock=self.clock, timings=timings, on_lost=self._reap_now.set
        )
        self.reaper = Reaper(
            store=store,
            ownership=self.ownership,
            registry=self.registry,
            slots=self.slots,
            ender=self.ender,
            liveness=self.liveness,
            cancels=self.cancels,
            clock=self.clock,
            failpoints=self.failpoints,
            timings=timings,
        )
        self.keeper = Keeper(
            store=store,
            ownership=self.ownership,
            registry=self.registry,
            index=self.index,
            claimer=self.claimer,
            reaper=self.reaper,
            parking=self.parking,
            adoption=self.adoption,
            waiters=self.waiters,
            clock=self.clock,
            timings=timings,
        )
        self.news = PeerNews(
            peers=self._peers,
            ender=self.ender,
            parking=self.parking,
            firer=self.firer,
            cancels=self.cancels,
            adoption=self.adoption,
            waiters=self.waiters,
            pending=self.claimer.add,
        )

    def start(self) -> None:
        """Start the loops."""
        reap_s, audit_s = self.timings.reap.total_seconds(), self.timings.audit.total_seconds()
        loops = {
            "claimer": self.claimer.run(),
            "keeper": self.keeper.run(),
            "firer": self.firer.run(),
            "leases": self.liveness.run(),
            "resets": self.liveness.resets.run(),
            "deadlines": self.deadlines.run(),
            "parking": self.parking.run(),
            "reaper": every(reap_s, "reaper", self.reaper.reap_once, wake=self._reap_now),
            "audit": every(audit_s, "audit", self.adoption.audit),
            "demand": self.demand.run(),
        }
        for number in range(FLUSHERS):
            loops[f"completer-{number}"] = self.completer.run()
        self._tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]

    async def drain(self, grace: timedelta) -> None:
        """Wait until claims and results under way are through; shards have been stopped before."""
        self.liveness.stop()
        for session in self.slots.sessions():
            session.link.send_drain(grace)
        await self.firer.stop()
        await self.claimer.stop()
        await self.completer.settle(grace.total_seconds())

    async def stop(self) -> None:
        """End the loops and close every session."""
        self.liveness.stop()
        for session in self.slots.sessions():
            session.link.close()
        tasks = [*self._tasks, *self._give_backs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def attach(
        self, session: WorkerSession, running: Sequence[AttemptRef], finished: Sequence[AttemptRef]
    ) -> list[AttemptRef]:
        """Connect a worker's session and return those of the reported attempts that are not its own any more."""
        reported = [*running, *finished]
        open_now = await self.adoption.open_attempts(reported) if reported else {}
        older = self.slots.attach(session)
        if older is not None:
            older.link.close()
        self.liveness.attached(session.worker_id)
        self.adoption.attached(session, set(reported))
        self.claimer.wake()
        return [ref for ref in reported if ref not in open_now]

    def detach(self, session: WorkerSession, *, goodbye: bool) -> None:
        """A session is over."""
        self.slots.detach(session)
        if not goodbye:
            self.liveness.stream_lost(session)

    async def goodbye(self, session: WorkerSession, reason: str) -> None:
        """A worker stops: its lease ends, and what it still held goes back at once."""
        self.slots.detach(session)
        await self.liveness.goodbye(session.worker_id, reason)
        await self.reaper.reap_once()

    def results(self, session: Reporter, results: Sequence[tuple[AttemptRef, Outcome]]) -> None:
        """Take in results of a session, or of a call."""
        self.completer.submit(session, results)
        self.claimer.wake()

    def credit(self, session: WorkerSession, sequence: int, credits: Mapping[int, int]) -> None:
        """Take in a session's credit by handler id."""
        session.grant(sequence, credits)
        self.claimer.wake()

    def link_full(self, session: WorkerSession, full: bool) -> None:
        """A session's stream cannot take more jobs at present, or can again."""
        session.full = full
        self.claimer.wake()

    async def progress(self, worker_id: int, progress: Sequence[tuple[AttemptRef, bytes]]) -> None:
        """Keep the progress of attempts of a worker."""
        latest = dict(progress)
        for partition, refs in self.ender.by_partition(latest).items():
            try:
                await self._store.save_progress(partition, worker_id, [(ref, latest[ref]) for ref in refs])
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning("progress not kept", extra={"error": str(error), "attempts": len(refs)})

    def give_back(self, refs: Sequence[AttemptRef]) -> None:
        """Requeue attempts that were never delivered; tried until the database takes it or the shard is lost."""
        for partition, some in self.ender.by_partition(refs).items():
            task = asyncio.create_task(self._give_back(partition, some), name=f"give-back-{partition}")
            self._give_backs.add(task)
            task.add_done_callback(self._give_backs.discard)

    def jobs_added(self, jobs: Sequence[DueJob]) -> None:
        """Jobs became pending: look for them, or have the owners of their shards look."""
        self.claimer.add(jobs)
        for job in jobs:
            self._peers.tell_owner(job.shard, job)

    def schedule_changed(self, shard: int, next_fire_at: datetime | None) -> None:
        """A schedule of a shard was created or changed and fires next at this time: see to it, or have the owner."""
        self.firer.schedules_changed(shard, next_fire_at)
        self._peers.tell_owner(shard, ScheduleChanged(shard, next_fire_at))

    def key_freed(self, shard: int, namespace_id: int, key: str) -> None:
        """There is room for one more job under a concurrency key: wake it, or have the owner wake it."""
        self.parking.key_freed(shard, namespace_id, key)
        self._peers.tell_owner(shard, KeyFreed(shard, namespace_id, key))

    def owned_shards(self) -> list[int]:
        """Return the owned shards, ascending."""
        return sorted(self.ownership.epochs)

    def handler_view(self, handler_id: int) -> HandlerView:
        """Return the connected workers of a handler."""
        return self.slots.view(handler_id)

    def handler_changed(self, handler_id: int, *, paused: bool) -> None:
        """A handler was paused or resumed on this node: all nodes should know."""
        self.handler_seen(handler_id, paused=paused)
        self.handlers_changed()

    def handlers_changed(self) -> None:
        """Settings of handlers were changed by a request to this node: all nodes should look."""
        self._peers.tell_all(HandlersChanged())

    def handler_seen(self, handler_id: int, *, paused: bool) -> None:
        """Take in what the database says of a handler."""
        if paused:
            self.claimer.paused_handlers.add(handler_id)
        else:
            self.claimer.paused_handlers.discard(handler_id)
        self.claimer.wake()

    def dispatch_seen(self, handler_id: int, dispatch: Dispatch) -> None:
        """Take in how the database says that a handler's jobs are handed out."""
        if dispatch.mode is DispatchMode.KAFKA:
            self.queues.open(handler_id, dispatch.max_unfinished)
        else:
            self.queues.close(handler_id)

    def attempts_started(self, started: Started) -> None:
        """A consumer has started published attempts, by a request to this node."""
        for job in started.jobs:
            self.adoption.started(job.ref, job.worker_id, job.timeout_at)
            self._peers.tell_owner(shard_of_id(job.job_id), AttemptStarted(job.ref, job.worker_id, job.timeout_at))

    def published_job_ended(self, ref: AttemptRef) -> None:
        """A job that was published, and not started, became final by a request."""
        self.ender.gone(ref, job_final=True)

    def cancel_requested(self, ref: AttemptRef, worker_id: int) -> None:
        """A running job was marked as cancelled: tell its worker."""
        self.reaper.cancel_now(ref, worker_id, "requested")

    def job_finished(self, job_id: int) -> None:
        """A job became final by a request."""
        self.ender.job_final(job_id)

    def waiter(self, job_id: int) -> Waiter:
        """Return a waiter for the end of a job, as far as this node hears of it."""
        return self.waiters.add(job_id)

    def watch(self, job_id: int) -> None:
        """Ask the owner of a job's shard to tell this node when the job ends. To be repeated every few seconds."""
        self._peers.tell_owner(shard_of_id(job_id), JobWatched(job_id))

    async def _give_back(self, partition: int, refs: list[AttemptRef]) -> None:
        for pause in (0.05, 0.2, 0.5, 1.0, 2.0, 5.0):
            try:
                await self.adoption.give_back(partition, refs)
                return
            except (StoreUnavailable, OutcomeUnknown):
                await asyncio.sleep(pause)
            except Exception:
                log.exception("attempts could not be given back", extra={"partition": partition})
                break
        # The audit asks the worker about them later on.
        for ref in refs:
            entry = self.registry.get(ref)
            if entry is not None:
                entry.session_id = None

    def _over_time(self, entry: RunningEntry) -> None:
        if is_queue_lease(entry.worker_id):
            self.keeper.look_at(self.ownership.partition_of[entry.shard])
        else:
            self.reaper.cancel_now(entry.ref, entry.worker_id, "timeout")

    def _shard_started(self, shard: int) -> None:
        self.keeper.look_at(self.ownership.partition_of[shard])
        self.firer.shard_started(shard)

    def _shard_stopped(self, shard: int) -> None:
        self.firer.shard_stopped(shard)
