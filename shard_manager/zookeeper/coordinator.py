"""The coordinator on ZooKeeper: one node's side of it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from shard_manager.coordinator import Lease, Member, Plan, View
from shard_manager.errors import CoordinatorFailed, CoordinatorUnavailable, InvalidSetting, SessionLost
from shard_manager.zookeeper import cluster, leases
from shard_manager.zookeeper.link import Link
from shard_manager.zookeeper.messages import (
    LinkDown,
    LinkLost,
    LinkRefused,
    LinkState,
    Refused,
)
from shard_manager.zookeeper.meta import DrawGeneration, look_at_tree, settle_generation
from shard_manager.zookeeper.session import Session, begin_session
from shard_manager.zookeeper.settings import ZookeeperSettings
from shard_manager.zookeeper.tree import Tree, Unreadable
from shard_manager.zookeeper.watchdog import Watchdog

logger = logging.getLogger(__name__)

DEFAULT_DEADLINE: Final = timedelta(seconds=3)
# Of a goodbye to a server that does not answer.
_GRACE_S: Final = 1.0
_PROBE_TTL_S: Final = 10.0


class ZookeeperCoordinator:
    """One node's coordinator; see `Coordinator` for the contract.

    `cluster_id` says whose tree it has to be; `ForeignCluster` is raised by `join` and `probe` if it is another's.
    `draw_generation` see `DrawGeneration`. `deadline` bounds each call, a join by twice as much; half the session's
    length if that is less. `clock` (monotonic seconds) is for the node's own renewals alone.
    """

    tells_at_once = True

    def __init__(
        self,
        settings: ZookeeperSettings,
        *,
        cluster_id: str,
        draw_generation: DrawGeneration,
        deadline: timedelta = DEFAULT_DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if deadline <= timedelta(0):
            raise InvalidSetting("deadline", deadline, "must be a positive duration")
        self._settings = settings
        self._tree = Tree(settings.chroot)
        self._cluster_id = cluster_id
        self._draw_generation = draw_generation
        self._deadline_s = deadline.total_seconds()
        self._clock = clock
        self.node = ""
        """The node of the latest `join`."""
        self._incarnation = 0
        self._ttl_s = 0.0
        self._session: Session | None = None
        self._watchdog: Watchdog | None = None
        self._ending: set[Link] = set()
        self._asked_s = float("-inf")
        self._woken = asyncio.Event()

    @property
    def state(self) -> LinkState:
        """What is known of the session: LOST also before the first and after the last."""
        return self._session.link.state if self._session is not None else LinkState.LOST

    @property
    def session(self) -> tuple[int, bytes] | None:
        """Number and password of the ZooKeeper session, for tools that end it; kept after `close`."""
        return self._session.link.session if self._session is not None else None

    async def look(self) -> None:
        """Look whether the servers answer and the tree is nobody else's, without writing. Raises as `probe`."""
        link = Link(self._settings, ttl_s=self._ttl_s or _PROBE_TTL_S, changed=self.wake)
        try:
            async with self._doing("look", self._deadline_s, link):
                await link.open()
                await look_at_tree(link, self._tree, self._cluster_id)
        finally:
            await self._end(link, _GRACE_S)

    async def probe(self) -> None:
        """Look whether a join could succeed: the servers answer, the credentials and the tree are right.

        Makes the tree if it is missing. Raises `CoordinatorUnavailable`, `CoordinatorFailed` or `ForeignCluster`.
        """
        link = Link(self._settings, ttl_s=self._ttl_s or _PROBE_TTL_S, changed=self.wake)
        try:
            async with self._doing("probe", self._deadline_s, link):
                await link.open()
                await settle_generation(link, self._tree, self._cluster_id, self._draw_generation)
        finally:
            await self._end(link, _GRACE_S)

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        self.node, self._incarnation = member.node, member.incarnation
        self._ttl_s = ttl.total_seconds()
        await self._end_session(_GRACE_S)
        link = Link(self._settings, ttl_s=self._ttl_s, changed=self.wake)
        try:
            async with self._doing("join", 2 * self._call_s(), link):
                await link.open()
                generation = await settle_generation(link, self._tree, self._cluster_id, self._draw_generation)
                session = await begin_session(link, self._tree, generation, member, self._ttl_s, replaces)
        except BaseException:
            # What may have been made of a session must not live on.
            await self._end(link, _GRACE_S)
            raise
        self._session = session
        self._watchdog = Watchdog(self._ttl_s, self._clock, lambda: self._bitten(link))

    async def renew(self, member: Member) -> None:
        if (member.node, member.incarnation) != (self.node, self._incarnation):
            raise InvalidSetting("member", member, "node and incarnation are those of the session")
        async with self._calling("renew") as session:
            watchdog = self._watchdog
            assert watchdog is not None
            watchdog.beat()
            try:
                await self._ask_anew(session)
                await cluster.publish(session, member)
            finally:
                watchdog.beat()

    async def leave(self) -> None:
        session = self._session
        if session is None:
            return
        if session.link.state is LinkState.SUSPENDED:
            raise CoordinatorUnavailable("leave", f"no connection to {session.link.trouble}")
        await self._end_session(_GRACE_S)

    async def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.dismiss()
        ending = set(self._ending)
        if self._session is not None:
            ending.add(self._session.link)
        await asyncio.gather(*(self._end(link, 0.0) for link in ending))

    async def view(self, *, fresh: bool = False) -> View:
        async with self._calling("view") as session:
            return await cluster.read_view(session, fresh=fresh)

    async def write_plan(self, plan: Plan) -> None:
        async with self._calling("write_plan") as session:
            await cluster.write_plan(session, plan)

    async def acquire(self, shards: Collection[int]) -> Collection[Lease]:
        async with self._calling("acquire") as session:
            try:
                return await leases.acquire_leases(session, shards)
            except leases.GenerationChanged:
                session.generation = await settle_generation(
                    session.link, self._tree, self._cluster_id, self._draw_generation
                )
                return await leases.acquire_leases(session, shards)

    async def release(self, leases_: Collection[Lease]) -> None:
        async with self._calling("release") as session:
            await leases.release_leases(session, leases_)

    async def evict(self, node: str, session: int) -> bool:
        async with self._calling("evict") as own:
            return await cluster.evict(own, node, session)

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

    def _call_s(self) -> float:
        return min(self._deadline_s, self._ttl_s / 2)

    @asynccontextmanager
    async def _calling(self, operation: str) -> AsyncIterator[Session]:
        """Yield the present session; what goes wrong inside comes out as one of the contract's errors."""
        session = self._session
        if session is None:
            raise SessionLost(self.node)
        if self._watchdog is not None and self._watchdog.late:
            # Before kazoo knows: this process was stopped, or its event loop hung, for a session's length.
            self._bitten(session.link)
        async with self._doing(operation, self._call_s(), session.link):
            yield session

    @asynccontextmanager
    async def _doing(self, operation: str, deadline_s: float, link: Link) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError as error:
            reason = f"no answer within {deadline_s:g} s"
            if link.state is not LinkState.CONNECTED:
                reason += f" from {link.trouble}"
            raise CoordinatorUnavailable(operation, reason) from error
        except LinkDown as error:
            raise CoordinatorUnavailable(operation, str(error)) from error
        except LinkRefused as error:
            raise CoordinatorFailed(operation, str(error)) from error
        except (Refused, Unreadable) as error:
            raise CoordinatorFailed(operation, f"the znodes are not as this program makes them: {error}") from error
        except LinkLost as error:
            link.end_in_background(_GRACE_S)
            raise SessionLost(self.node) from error

    async def _ask_anew(self, session: Session) -> None:
        """Without a connection for long, look by another one whether the session lives. Raises `LinkLost` if not.

        An ensemble that was wiped refuses all that have seen more of it than it has left, so a client that only tries
        to come back to its session never learns that there is none any more.
        """
        if session.link.suspended_for_s < self._ttl_s or self._clock() - self._asked_s < self._ttl_s:
            return
        self._asked_s = self._clock()
        link = Link(self._settings, ttl_s=self._ttl_s, changed=self.wake)
        try:
            await link.open()
            await link.sync(self._tree.root)
            if await link.stat(self._tree.candidate(session.candidate)) is None:
                raise LinkLost
        finally:
            link.end_in_background(_GRACE_S)

    async def _end_session(self, grace_s: float) -> None:
        session, self._session = self._session, None
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None
        if session is not None:
            await self._end(session.link, grace_s)

    async def _end(self, link: Link, grace_s: float) -> None:
        self._ending.add(link)
        link.end_in_background(grace_s)
        await link.ended()
        self._ending.discard(link)

    def _bitten(self, link: Link) -> None:
        """The node has not renewed for a session's length. In the watchdog's thread or the event loop."""
        link.give_up()
        link.end_in_background(_GRACE_S)
