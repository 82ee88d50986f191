"""A coordinator in memory, for tests and simulation: same contract, injected clock, faults on demand.

Nodes of one process share a `MemoryCluster`. Nothing survives the process, and nothing is fenced by it.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from shard_manager.coordinator import Lease, Member, Plan, SessionInfo, View
from shard_manager.errors import (
    CoordinatorUnavailable,
    InvalidSetting,
    NodeNameTaken,
    NotLeader,
    PlanConflict,
    SessionLost,
)


@dataclass(slots=True)
class _Session:
    number: int
    member: Member
    ttl_s: float
    expires_s: float
    opened_s: float
    leases: dict[int, Lease] = field(default_factory=dict)


class MemoryCluster:
    """What all nodes share. `clock` gives monotonic seconds; sessions expire by it, checked on every call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, generation: int = 1) -> None:
        self.clock = clock
        self.generation = generation
        self.plan: Plan | None = None
        self._sessions: dict[int, _Session] = {}
        self._numbers = 0
        self._tokens = 0
        self._away: set[str] = set()
        # In the order of their coming, so that a simulation repeats itself.
        self._waiters: dict[asyncio.Event, None] = {}

    # Faults.

    def expire(self, node: str) -> None:
        """End the session of `node`, as if it had not been renewed in time."""
        for session in list(self._sessions.values()):
            if session.member.node == node:
                del self._sessions[session.number]
        self.changed()

    def wipe(self) -> None:
        """Lose everything, as a ZooKeeper that was set up anew: sessions, leases and the plan. A new generation begins,
        whose tokens start again at 1."""
        self._sessions.clear()
        self._tokens = 0
        self.plan = None
        self.generation += 1
        self.changed()

    def cut_off(self, node: str) -> None:
        """From now on every call of `node` fails with `CoordinatorUnavailable`, and its session is not renewed."""
        self._away.add(node)

    def reconnect(self, node: str) -> None:
        """Undo `cut_off`."""
        self._away.discard(node)
        self.changed()

    # What coordinators use.

    def reach(self, node: str, operation: str) -> None:
        """Raise `CoordinatorUnavailable` if `node` is cut off; expire what is over."""
        if node in self._away:
            raise CoordinatorUnavailable(operation, "cut off")
        over = [session.number for session in self._sessions.values() if session.expires_s <= self.clock()]
        for number in over:
            del self._sessions[number]
        if over:
            self.changed()

    def open(self, member: Member, ttl_s: float, replaces: Collection[int]) -> int:
        for session in list(self._sessions.values()):
            if session.member.node != member.node:
                continue
            if session.member.incarnation not in {member.incarnation, *replaces}:
                raise NodeNameTaken(
                    member.node,
                    incarnation=session.member.incarnation,
                    address=session.member.address,
                    expires_in_s=session.expires_s - self.clock(),
                )
            del self._sessions[session.number]
        self._numbers += 1
        self._sessions[self._numbers] = _Session(self._numbers, member, ttl_s, self.clock() + ttl_s, self.clock())
        self.changed()
        return self._numbers

    def session(self, number: int, node: str) -> _Session:
        session = self._sessions.get(number)
        if session is None:
            raise SessionLost(node)
        return session

    def end(self, number: int) -> None:
        self._sessions.pop(number, None)
        self.changed()

    def members(self) -> dict[str, Member]:
        return {session.member.node: session.member for session in self._sessions.values()}

    def sessions(self) -> dict[str, SessionInfo]:
        return {
            session.member.node: SessionInfo(
                number=session.number, opened_at=datetime.fromtimestamp(session.opened_s, UTC)
            )
            for session in self._sessions.values()
        }

    def evict(self, node: str, number: int) -> bool:
        session = self._sessions.get(number)
        if session is None or session.member.node != node:
            return False
        self.end(number)
        return True

    def leader(self) -> _Session | None:
        return min(self._sessions.values(), key=lambda session: session.number, default=None)

    def grant(self, session: _Session, shard: int) -> Lease | None:
        """The lease of `shard` that `session` has or gets; None if another has it."""
        for other in self._sessions.values():
            if shard in other.leases:
                return other.leases[shard] if other is session else None
        self._tokens += 1
        lease = Lease(shard=shard, generation=self.generation, token=self._tokens)
        session.leases[shard] = lease
        return lease

    def watch(self, event: asyncio.Event) -> None:
        self._waiters[event] = None

    def unwatch(self, event: asyncio.Event) -> None:
        self._waiters.pop(event, None)

    def changed(self) -> None:
        for event in self._waiters:
            event.set()


class MemoryCoordinator:
    """One node's coordinator; see `Coordinator` for the contract."""

    tells_at_once = True

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._node = ""
        self._member: Member | None = None
        self._number: int | None = None
        self._woken = asyncio.Event()
        cluster.watch(self._woken)

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        self._node = member.node
        self._cluster.reach(member.node, "join")
        self._number = None
        self._number = self._cluster.open(member, ttl.total_seconds(), replaces)
        self._member = member

    async def renew(self, member: Member) -> None:
        session = self._session("renew")
        if (member.node, member.incarnation) != (session.member.node, session.member.incarnation):
            raise InvalidSetting("member", member, "node and incarnation are those of the session")
        session.expires_s = self._cluster.clock() + session.ttl_s
        if session.member != member:
            session.member = member
            self._cluster.changed()

    async def leave(self) -> None:
        self._cluster.reach(self._node, "leave")
        if self._number is not None:
            self._cluster.end(self._number)
            self._number = None

    async def close(self) -> None:
        self._cluster.unwatch(self._woken)

    async def view(self, *, fresh: bool = False) -> View:
        session = self._session("view")
        leader = self._cluster.leader()
        return View(
            members=self._cluster.members(),
            leader=leader.member.node if leader is not None else None,
            plan=self._cluster.plan,
            held=dict(session.leases),
            sessions=self._cluster.sessions(),
        )

    async def write_plan(self, plan: Plan) -> None:
        session = self._session("write_plan")
        leader = self._cluster.leader()
        if leader is not session:
            raise NotLeader(self._node, leader.member.node if leader is not None else None)
        found = self._cluster.plan.version if self._cluster.plan is not None else 0
        if found != plan.version - 1:
            raise PlanConflict(plan.version - 1, found)
        self._cluster.plan = replace(plan, owners=dict(plan.owners))
        self._cluster.changed()

    async def acquire(self, shards: Collection[int]) -> Collection[Lease]:
        session = self._session("acquire")
        granted = (self._cluster.grant(session, shard) for shard in sorted(shards))
        return [lease for lease in granted if lease is not None]

    async def release(self, leases: Collection[Lease]) -> None:
        session = self._session("release")
        for lease in leases:
            if session.leases.get(lease.shard) == lease:
                del session.leases[lease.shard]
        self._cluster.changed()

    async def evict(self, node: str, session: int) -> bool:
        self._session("evict")
        return self._cluster.evict(node, session)

    async def wait_change(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def _session(self, operation: str) -> _Session:
        self._cluster.reach(self._node, operation)
        if self._number is None:
            raise SessionLost(self._node)
        try:
            return self._cluster.session(self._number, self._node)
        except SessionLost:
            self._number = None
            raise
