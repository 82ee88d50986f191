"""Statements on `coord_sessions`: who lives. Every time is the database's."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from shard_manager.coordinator import Member, MemberState
from shard_manager.errors import NodeNameTaken
from shard_manager.postgres.connection import AsyncConnection
from shard_manager.postgres.stuck import StuckSessions

_REPLACE: Final = """
DELETE FROM coord_sessions
WHERE node = %s AND (incarnation = ANY(%s::bigint[]) OR expires_at <= clock_timestamp())"""

_OPEN: Final = """
INSERT INTO coord_sessions (node, incarnation, state, weight, address, ttl, expires_at)
VALUES (%(node)s, %(incarnation)s, %(state)s, %(weight)s, %(address)s, %(ttl)s, clock_timestamp() + %(ttl)s)
ON CONFLICT (node) DO NOTHING
RETURNING session_id"""

_HOLDER: Final = """
SELECT incarnation, address, extract(epoch FROM expires_at - clock_timestamp())::float8
FROM coord_sessions WHERE node = %s"""


async def open_session(connection: AsyncConnection, member: Member, ttl: timedelta, replaces: Collection[int]) -> int:
    """Open a session for `member` and return its number, ending sessions of its name that are over, its own, or in
    `replaces`. Raises `NodeNameTaken`."""
    await connection.execute(_REPLACE, (member.node, [member.incarnation, *replaces]))
    arguments = {
        "node": member.node,
        "incarnation": member.incarnation,
        "state": member.state.value,
        "weight": member.weight,
        "address": member.address,
        "ttl": ttl,
    }
    opened = await (await connection.execute(_OPEN, arguments)).fetchone()
    if opened is not None:
        return int(opened[0])
    holder = await (await connection.execute(_HOLDER, (member.node,))).fetchone()
    # No holder: it has gone since. The caller tries again soon in either case.
    incarnation, address, expires_in_s = holder if holder is not None else (0, "", 0.0)
    raise NodeNameTaken(member.node, incarnation=incarnation, address=address, expires_in_s=max(expires_in_s, 0.0))


_RENEW: Final = """
UPDATE coord_sessions SET expires_at = clock_timestamp() + ttl, state = %s, weight = %s, address = %s
WHERE session_id = %s AND expires_at > clock_timestamp()"""


async def renew_session(connection: AsyncConnection, session: int, member: Member) -> bool:
    """Renew and publish `member`; False: the session is over."""
    renewed = await connection.execute(_RENEW, (member.state.value, member.weight, member.address, session))
    return renewed.rowcount == 1


_END: Final = "DELETE FROM coord_sessions WHERE session_id = %s"


async def end_session(connection: AsyncConnection, session: int) -> None:
    """End the session, if it is not over already; its leases go with it."""
    await connection.execute(_END, (session,))


# Only somebody with a live session may do it. Its row is locked by its owner's renewals for an instant at most.
_EVICT: Final = """
WITH own AS (SELECT FROM coord_sessions WHERE session_id = %(own)s AND expires_at > clock_timestamp()),
evicted AS (
    DELETE FROM coord_sessions WHERE session_id = %(session)s AND node = %(node)s AND EXISTS (SELECT FROM own)
    RETURNING 1)
SELECT EXISTS (SELECT FROM own), EXISTS (SELECT FROM evicted)"""


async def evict_session(connection: AsyncConnection, own: int, node: str, session: int) -> bool | None:
    """End session `session` of `node`; its leases go with it. False: it was over already. None: `own` is over."""
    arguments = {"own": own, "session": session, "node": node}
    row = await (await connection.execute(_EVICT, arguments)).fetchone()
    if row is None or not row[0]:
        return None
    return bool(row[1])


_SESSIONS: Final = """
SELECT session_id, expires_at > clock_timestamp(), expires_at > clock_timestamp() + 1.5 * ttl,
       node, incarnation, state, weight, address, expires_at, extract(epoch FROM ttl)::float8, opened_at
FROM coord_sessions ORDER BY session_id"""

# The inner select waits for nobody, so reapers never deadlock, and looks again at what a late renewal has changed.
_REAP: Final = """
DELETE FROM coord_sessions WHERE session_id IN (
    SELECT session_id FROM coord_sessions WHERE expires_at <= clock_timestamp()
    ORDER BY session_id FOR UPDATE SKIP LOCKED)"""

_REAP_STUCK: Final = "DELETE FROM coord_sessions WHERE session_id = %s AND expires_at = %s"


async def read_live_sessions(
    connection: AsyncConnection, stuck: StuckSessions, now_s: float
) -> Mapping[int, tuple[Member, datetime]]:
    """The members by session number with when each session was opened, the leader's first; sessions that are over are
    deleted on the way.

    `now_s` is by the monotonic clock of `stuck`.
    """
    live: dict[int, tuple[Member, datetime]] = {}
    ahead: list[tuple[int, datetime, float]] = []
    rows = await (await connection.execute(_SESSIONS)).fetchall()
    for session, lives, is_ahead, node, incarnation, state, weight, address, expires_at, ttl_s, opened_at in rows:
        if is_ahead:
            ahead.append((session, expires_at, ttl_s))
        if lives:
            member = Member(
                node=node, incarnation=incarnation, state=MemberState(state), weight=weight, address=address
            )
            live[session] = (member, opened_at.astimezone(UTC))
    if len(live) < len(rows):
        await connection.execute(_REAP)
    for session, expires_at in stuck.find(ahead, now_s):
        await connection.execute(_REAP_STUCK, (session, expires_at))
    return live
