"""The coordinator on PostgreSQL: for small installations, and what `shardwheel dev` uses.

Sessions, leases and the plan are rows (`schema.sql`); every time is the database's. Expiry is a delete: whoever notices
a session past its time deletes it, and its leases go with it. The leader is the lowest live session. Nothing pushes
changes; the manager polls.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Final, NoReturn

import psycopg

from shard_manager.coordinator import Lease, Member, Plan, SessionInfo, View
from shard_manager.errors import InvalidSetting, SessionLost
from shard_manager.postgres import leases as lease_rows
from shard_manager.postgres import plans as plan_rows
from shard_manager.postgres import sessions as session_rows
from shard_manager.postgres.connection import AsyncConnection, Connection
from shard_manager.postgres.stuck import StuckSessions

logger = logging.getLogger(__name__)

DEFAULT_DEADLINE: Final = timedelta(seconds=3)


class PostgresCoordinator:
    """One node's coordinator; see `Coordinator` for the contract.

    `conninfo` is a libpq connection string or URI whose search_path leads to the coordinator's tables. `deadline`
    bounds each call. Two connections are used, opened when needed: one for the session alone, so that no other call
    can delay a renewal.
    """

    tells_at_once = False

    def __init__(self, conninfo: str, *, deadline: timedelta = DEFAULT_DEADLINE) -> None:
        deadline_s = deadline.total_seconds()
        if deadline_s <= 0:
            raise InvalidSetting("deadline", deadline, "must be a positive duration")
        self._heart = Connection(conninfo, deadline_s=deadline_s, application_name="shardwheel-session")
        self._work = Connection(conninfo, deadline_s=deadline_s, application_name="shardwheel-coordinator")
        self._node = ""
        self._incarnation = 0
        self._session: int | None = None
        self._plan: Plan | None = None
        self._stuck = StuckSessions()
        self._woken = asyncio.Event()

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        self._node, self._incarnation = member.node, member.incarnation
        self._session = None

        async def work(connection: AsyncConnection) -> int:
            await plan_rows.ensure_generation(connection)
            return await session_rows.open_session(connection, member, ttl, replaces)

        self._session = await self._heart.call("join", work)

    async def renew(self, member: Member) -> None:
        if (member.node, member.incarnation) != (self._node, self._incarnation):
            raise InvalidSetting("member", member, "node and incarnation are those of the session")
        session = self._current()
        if not await self._heart.call("renew", lambda link: session_rows.renew_session(link, session, member)):
            self._lost(session)

    async def leave(self) -> None:
        session = self._session
        if session is None:
            return
        await self._heart.call("leave", lambda link: session_rows.end_session(link, session))
        self._session = None

    async def close(self) -> None:
        for connection in (self._heart, self._work):
            try:
                await connection.close()
            except (psycopg.Error, OSError) as error:
                logger.warning("connection not closed cleanly", extra={"node": self._node, "error": str(error)})

    async def view(self, *, fresh: bool = False) -> View:
        session = self._current()
        known = None if fresh else self._plan

        async def work(connection: AsyncConnection) -> View | None:
            live = await session_rows.read_live_sessions(connection, self._stuck, time.monotonic())
            if session not in live:
                return None
            return View(
                members={member.node: member for member, _ in live.values()},
                sessions={
                    member.node: SessionInfo(number=number, opened_at=opened_at)
                    for number, (member, opened_at) in live.items()
                },
                leader=live[min(live)][0].node,
                plan=await plan_rows.read_plan(connection, known),
                held=await lease_rows.read_held(connection, session),
            )

        view = await self._work.call("view", work)
        if view is None:
            self._lost(session)
        self._plan = view.plan
        return view

    async def write_plan(self, plan: Plan) -> None:
        session = self._current()
        refused = await self._work.call("write_plan", lambda link: plan_rows.write_plan(link, session, plan))
        if isinstance(refused, SessionLost):
            self._lost(session)
        if refused is not None:
            raise refused
        self._plan = plan

    async def acquire(self, shards: Collection[int]) -> Collection[Lease]:
        session = self._current()
        leases = await self._work.call("acquire", lambda link: lease_rows.acquire_leases(link, session, shards))
        if leases is None:
            self._lost(session)
        return leases

    async def release(self, leases: Collection[Lease]) -> None:
        session = self._current()
        if not await self._work.call("release", lambda link: lease_rows.release_leases(link, session, leases)):
            self._lost(session)

    async def evict(self, node: str, session: int) -> bool:
        own = self._current()
        ended = await self._work.call("evict", lambda link: session_rows.evict_session(link, own, node, session))
        if ended is None:
            self._lost(own)
        return ended

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

    def _current(self) -> int:
        if self._session is None:
            raise SessionLost(self._node)
        return self._session

    def _lost(self, session: int) -> NoReturn:
        # A call that began in an earlier session must not end the present one.
        if self._session == session:
            self._session = None
        raise SessionLost(self._node)
