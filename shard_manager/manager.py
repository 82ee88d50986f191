"""The shard manager of one node: keeps a session, leads if elected, and brings the node's shards in line with the plan.

Two loops share one event loop and no lock. The *heartbeat* renews the session and does nothing else, so that a slow
round cannot cost the session. The *rounds* are level-triggered: each reads what is (members, plan, own leases), applies
it to every shard's state machine, and carries out what those ask for; whatever woke it only set the time. A round that
fails is tried again after a pause and changes nothing that it did not get to.

While the coordinator does not answer, the node goes on serving what it holds: it cannot know whether its session still
lives, and need not, for the fence in PostgreSQL refuses every statement of an owner that has been replaced. Only the
coordinator's own word that the session is over stops the shards, all at once; then the node joins, leases and fences
anew.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from shard_manager.backoff import Backoff
from shard_manager.coordinator import MAX_SHARDS, Coordinator, Member, MemberState, View
from shard_manager.drain import Drain
from shard_manager.errors import InvalidSetting, NotLeader, SessionLost, ShardCountMismatch
from shard_manager.events import (
    Cause,
    Drained,
    ManagerEvent,
    SessionEnded,
    SessionOpened,
)
from shard_manager.handover import Handover
from shard_manager.host import ShardHost
from shard_manager.host_calls import HostCalls
from shard_manager.leader import LastOwners, Leader
from shard_manager.shard_table import ShardTable
from shard_manager.sight import Sight
from shard_manager.status import ManagerStatus
from shard_manager.steering import Given, PlanChange
from shard_manager.timings import ManagerTimings
from shard_manager.trouble import Trouble

logger = logging.getLogger(__name__)

_MAX_MOVES_SHARE = 10


class ShardManager:
    """Owns shards for one node. Create it inside a running event loop's program, `run` it as a task, end it by `drain`.

    `member` names the node; its state is kept by the manager. `shards` is the cluster's permanent number of shards.
    `replaces` are incarnations of this node known to be dead (see `IncarnationFile`), whose session may be taken over.
    `observer` is called for every `ManagerEvent`, synchronously; it must be quick, and what it raises is logged.
    `max_moves` bounds the shards moved for balance in one plan, by default a tenth of all. `draw` spreads the pauses
    after failures, by default at random; a simulation passes a seeded one. `clock` tells the cluster's time in UTC, by
    default the system's; pins end by it, so all nodes should have the same. `last_owners` see `Leader`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        host: ShardHost,
        *,
        member: Member,
        shards: int,
        replaces: Collection[int] = (),
        timings: ManagerTimings | None = None,
        observer: Callable[[ManagerEvent], None] | None = None,
        max_moves: int | None = None,
        draw: random.Random | None = None,
        clock: Callable[[], datetime] | None = None,
        last_owners: LastOwners | None = None,
    ) -> None:
        if not 1 <= shards <= MAX_SHARDS:
            raise InvalidSetting("shards", shards, f"must be 1 to {MAX_SHARDS}")
        self._coordinator = coordinator
        self._identity = member
        self._shards = shards
        self._replaces = tuple(replaces)
        self._timings = timings if timings is not None else ManagerTimings()
        self._observer = observer
        self._draw = draw
        self._calls = HostCalls(host, self._timings, self)
        self._table = ShardTable(
            member.node,
            shards,
            start=self._calls.start,
            stop=lambda shard, graceful: self._calls.stop(shard, graceful=graceful),
            emit=self._emit,
            clock=self._now_s,
            setback_initial_s=self._timings.backoff_initial.total_seconds(),
            setback_max_s=self._timings.backoff_max.total_seconds(),
        )
        if max_moves is None:
            max_moves = -(-shards // _MAX_MOVES_SHARE)
        self._clock = clock if clock is not None else _system_time
        self._leader = Leader(
            coordinator, member.node, shards, self._timings, max_moves, self._emit, self._clock, last_owners
        )
        notice = timedelta(0) if coordinator.tells_at_once else self._timings.poll + self._timings.handoff_poll
        self._handover = Handover(member.node, notice)
        self._sight = Sight(member, self._emit)
        self._round_trouble = Trouble("round", member.node, self._emit)
        self._beat_trouble = Trouble("heartbeat", member.node, self._emit)
        self._healthy = True
        self._drain: Drain | None = None
        self._published: Member | None = None
        self._joined = asyncio.Event()
        self._joined_s = 0.0
        self._session = 0
        self._read_anew_s: float | None = None
        self._running = False
        self._finished = asyncio.Event()

    # What others call.

    async def run(self) -> None:
        """Hold shards until drained. Cancelling is the abrupt end: shards stop at once, the session expires later."""
        self._running = True
        node = self._identity.node
        try:
            async with asyncio.TaskGroup() as loops:
                heartbeat = loops.create_task(self._heartbeats(), name=f"shard-manager-heartbeat-{node}")
                await self._rounds()
                heartbeat.cancel()
        finally:
            self._running = False
            self._leader.orders.refuse(NotLeader(node, None))
            self._table.end_session(Cause.SHUTDOWN)
            await self._calls.settled()
            await self._coordinator.close()
            self._finished.set()

    async def drain(self) -> None:
        """Stop serving gracefully, release everything, leave the cluster, and end `run`. Bounded by `drain_limit`.

        Others get up to `drain_handover` to be given the shards before they are released.
        """
        if self._drain is None:
            self._drain = Drain(self._identity.node, self._timings, self._now_s())
            logger.info("drain began", extra={"node": self._identity.node, "shards": len(self._table.owned)})
        self._coordinator.wake()
        if self._running:
            await self._finished.wait()

    def fenced(self, shard: int, epoch: int | None = None) -> None:
        """A fenced statement found no row: `epoch` (default: the present one) of `shard` is gone. Drop the shard.

        If the plan still gives it to this node, it is leased and fenced anew. Old epochs, unknown shards: ignored.
        """
        self._table.lost_epoch(shard, epoch)

    async def order(self, given: Given) -> PlanChange:
        """Carry out an order if this node leads; it is in the plan by then, so every later leader obeys it, too.

        Waits for the coordinator for as long as the caller does: bound it. If that gives up, the order may or may not
        be carried out, and may be repeated. Raises `NotLeader` or `OrderRefused`.
        """
        leader = self._sight.leader if self._joined.is_set() else None
        if not self._running or leader != self._identity.node:
            raise NotLeader(self._identity.node, leader)
        self._coordinator.wake()
        return await self._leader.orders.give(given)

    async def end_session_of(self, node: str) -> bool:
        """End the present session of another `node` by force, whoever leads: its shards go to others, and itself may
        come back at once. Returns whether it had one. Raises `CoordinatorError`."""
        view = await self._coordinator.view()
        session = view.sessions.get(node)
        ended = session is not None and await self._coordinator.evict(node, session.number)
        self._coordinator.wake()
        return ended

    def set_healthy(self, healthy: bool) -> None:
        """Say whether this node can do its work; others take the shards of one that cannot, if they can."""
        if healthy != self._healthy:
            self._healthy = healthy
            self._coordinator.wake()

    @property
    def owned(self) -> Mapping[int, int]:
        """Shard to epoch of all shards that are fenced in now."""
        return self._table.owned

    def planned_owner(self, shard: int) -> str | None:
        """Return the node that the latest known plan gives a shard to."""
        return self._sight.owners.get(shard)

    def status(self) -> ManagerStatus:
        """A snapshot."""
        sight, now_s = self._sight, self._now_s()
        view, plan = sight.view, sight.plan
        error = self._round_trouble.error or self._beat_trouble.error
        return ManagerStatus(
            member=self._member(),
            joined=self._joined.is_set(),
            sessions_lost=self._session,
            leader=sight.leader,
            plan_version=plan.version if plan is not None else 0,
            plan_reason=plan.reason if plan is not None else "",
            orders=sight.orders,
            members=view.members if view is not None else {},
            sessions=view.sessions if view is not None else {},
            owners=sight.owners,
            planned_for_s=sight.planned_for_s(now_s),
            missing_for_s=sight.missing_for_s(now_s),
            shards=MappingProxyType(dict(self._table.states)),
            trouble=str(error) if error is not None else None,
        )

    # What the shard host's tasks tell (`Outcomes`).

    def started(self, shard: int, epoch: int) -> None:
        self._table.started(shard, epoch)

    def start_failed(self, shard: int) -> None:
        self._table.start_failed(shard)

    def stopped(self, shard: int) -> None:
        self._table.stopped(shard)
        self._coordinator.wake()

    # The heartbeat.

    async def _heartbeats(self) -> None:
        interval_s = self._timings.heartbeat.total_seconds()
        initial = min(self._timings.backoff_initial, self._timings.heartbeat)
        backoff = Backoff(initial, self._timings.heartbeat, self._draw)
        while True:
            await self._joined.wait()
            await asyncio.sleep(backoff.failed() if self._beat_trouble.error is not None else interval_s)
            session = self._session
            try:
                if self._joined.is_set():
                    await self._publish()
            except SessionLost:
                self._end_session(session)
            except Exception as error:
                self._beat_trouble.failed(error, self._now_s())
                continue
            self._beat_trouble.over()
            backoff.succeeded()

    async def _publish(self) -> None:
        member = self._member()
        await self._coordinator.renew(member)
        self._published = member

    def _member(self) -> Member:
        if self._drain is not None:
            return replace(self._identity, state=MemberState.DRAINING)
        return replace(self._identity, state=MemberState.UP if self._healthy else MemberState.UNHEALTHY)

    def _end_session(self, session: int) -> None:
        """Stop everything at once, unless the news is about an earlier session than the present one."""
        if session != self._session or not self._joined.is_set():
            return
        self._joined.clear()
        self._session += 1
        logger.warning("session lost", extra={"node": self._identity.node, "shards": len(self._table.owned)})
        self._emit(SessionEnded(node=self._identity.node))
        self._leader.orders.refuse(NotLeader(self._identity.node, None))
        self._table.end_session(Cause.SESSION_LOST)
        self._coordinator.wake()

    # The rounds.

    async def _rounds(self) -> None:
        backoff = Backoff(self._timings.backoff_initial, self._timings.backoff_max, self._draw)
        while True:
            session = self._session
            try:
                if self._drain is not None and await self._drained(self._drain):
                    return
                if not self._joined.is_set():
                    await self._join()
                await self._round()
            except SessionLost:
                self._end_session(session)
                # The first loss is no reason to wait; sessions that do not last are.
                if self._now_s() - self._joined_s < self._timings.heartbeat.total_seconds():
                    await asyncio.sleep(backoff.failed())
            except Exception as error:
                self._round_trouble.failed(error, self._now_s())
                self._read_anew_s = None
                if self._drain is not None:
                    self._table.unwant_all(Cause.DRAIN)
                await asyncio.sleep(backoff.failed())
            else:
                self._round_trouble.over()
                backoff.succeeded()
                if self._drain is None or not self._table.is_idle:
                    await self._coordinator.wait_change(self._pause_s())

    async def _join(self) -> None:
        member = self._member()
        await self._coordinator.join(member, ttl=self._timings.session_ttl, replaces=self._replaces)
        self._published = member
        self._read_anew_s = None
        self._joined_s = self._now_s()
        self._leader.new_session(self._joined_s)
        self._joined.set()
        logger.info("session opened", extra={"node": member.node, "incarnation": member.incarnation})
        self._emit(SessionOpened(node=member.node, lost_before=self._session))

    async def _round(self) -> None:
        # Before anything is read: what has stopped is waited for by others, and what others have released by this node.
        self._table.ask_again()
        await self._carry_out()
        if self._published != self._member():
            await self._publish()
        view = await self._read()
        view = await self._leader.lead(view, self._now_s())
        if not self._joined.is_set():
            # The heartbeat has learnt meanwhile that the session is over: what was read is void.
            return
        self._sight.see(view, self._now_s())
        cause = Cause.DRAIN if self._drain is not None or self._sight.excluded else Cause.PLAN
        self._table.reconcile(self._wanted(view), view.held, cause)
        await self._carry_out()

    async def _read(self) -> View:
        now_s = self._now_s()
        reread_s = self._timings.reread.total_seconds()
        fresh = self._read_anew_s is None or now_s - self._read_anew_s >= reread_s
        view = await self._coordinator.view(fresh=fresh)
        if fresh:
            self._read_anew_s = now_s
        if view.plan is not None and view.plan.shards != self._shards:
            raise ShardCountMismatch(configured=self._shards, planned=view.plan.shards)
        return view

    def _wanted(self, view: View) -> frozenset[int]:
        now_s = self._now_s()
        if self._drain is not None and not self._drain.serves_on(view, now_s):
            return frozenset()
        mine = view.plan.shards_of(self._identity.node) if view.plan is not None else frozenset()
        return mine | self._handover.keeps(view, self._table.owned, now_s)

    async def _carry_out(self) -> None:
        """Do what the shards ask for, releases first, until an answer asks for nothing new."""
        released: list[int] = []
        while True:
            releases = self._table.take_releases()
            if releases:
                await self._coordinator.release(releases)
                self._table.released(releases)
                released.extend(lease.shard for lease in releases)
            acquires = self._table.take_acquires()
            if acquires:
                self._table.leased(await self._coordinator.acquire(acquires))
            fences = self._table.take_fences()
            if fences:
                self._table.fenced_in(fences, await self._calls.fence_in(fences))
            if not (releases or fences):
                break
        if released:
            await self._calls.released(released)
            # Free again, and perhaps wanted again: look at once.
            self._coordinator.wake()

    def _pause_s(self) -> float:
        timings = self._timings
        hurries = self._table.waits_for_lease or self._drain is not None
        pause = timings.handoff_poll if hurries else timings.poll
        now_s = self._now_s()
        ends = [end_s for end_s in (self._table.next_retry_s(), self._handover.next_end_s(now_s)) if end_s is not None]
        return min([pause.total_seconds(), *(max(end_s - now_s, 0.001) for end_s in ends)])

    async def _drained(self, drain: Drain) -> bool:
        """While draining: leave if nothing is held any more, or give up when the time is over. True: it is done."""
        give_up = drain.is_overdue(serving=self._table.is_serving, now_s=self._now_s())
        if not give_up and not (self._table.is_idle and self._published_draining()):
            return False
        left = False
        if self._joined.is_set():
            try:
                await self._coordinator.leave()
                left = True
            except Exception as error:
                if not give_up:
                    raise
                logger.warning("node could not leave", extra={"node": self._identity.node, "error": str(error)})
            self._joined.clear()
        logger.info("drained", extra={"node": self._identity.node, "left": left})
        self._emit(Drained(node=self._identity.node, left=left))
        return True

    def _published_draining(self) -> bool:
        return not self._joined.is_set() or (
            self._published is not None and self._published.state is MemberState.DRAINING
        )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _emit(self, event: ManagerEvent) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:
            logger.exception("observer failed", extra={"kind": type(event).__name__})


def _system_time() -> datetime:
    return datetime.now(UTC)
