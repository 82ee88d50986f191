"""Statements on `coord_leases`: who was granted which shard."""

from collections.abc import Collection
from typing import Final

import psycopg

from shard_manager.coordinator import Lease
from shard_manager.postgres.connection import AsyncConnection

_ACQUIRE: Final = """
INSERT INTO coord_leases (shard, session_id, generation, token)
SELECT wanted.shard, live.session_id, coord_plans.generation, nextval('coord_tokens')
FROM coord_plans, coord_sessions live, unnest(%(shards)s::integer[]) AS wanted (shard)
WHERE live.session_id = %(session)s AND live.expires_at > clock_timestamp()
  AND NOT EXISTS (SELECT FROM coord_leases taken WHERE taken.shard = wanted.shard)
ORDER BY wanted.shard
ON CONFLICT (shard) DO NOTHING"""

_MINE_OF: Final = """
SELECT mine.shard, mine.generation, mine.token
FROM coord_sessions live
LEFT JOIN coord_leases mine ON mine.session_id = live.session_id AND mine.shard = ANY(%(shards)s::integer[])
WHERE live.session_id = %(session)s AND live.expires_at > clock_timestamp()"""


async def acquire_leases(connection: AsyncConnection, session: int, shards: Collection[int]) -> list[Lease] | None:
    """Lease what is free and return what is held of `shards`; None: the session is over."""
    arguments = {"session": session, "shards": sorted(shards)}
    try:
        await connection.execute(_ACQUIRE, arguments)
    except psycopg.errors.ForeignKeyViolation:
        return None  # reaped while the statement ran
    rows = await (await connection.execute(_MINE_OF, arguments)).fetchall()
    if not rows:
        return None
    return [
        Lease(shard=shard, generation=generation, token=token)
        for shard, generation, token in rows
        if shard is not None
    ]  # fmt: skip


# The token keeps a release that arrives late from taking a lease that was granted after it.
_RELEASE: Final = """
WITH released AS (
    DELETE FROM coord_leases held USING unnest(%s::integer[], %s::bigint[]) AS given (shard, token)
    WHERE held.session_id = %s AND held.shard = given.shard AND held.token = given.token)
SELECT FROM coord_sessions WHERE session_id = %s AND expires_at > clock_timestamp()"""


async def release_leases(connection: AsyncConnection, session: int, leases: Collection[Lease]) -> bool:
    """Give these leases back; False: the session is over."""
    shards = [lease.shard for lease in leases]
    tokens = [lease.token for lease in leases]
    answer = await connection.execute(_RELEASE, (shards, tokens, session, session))
    return answer.rowcount == 1


_HELD: Final = "SELECT shard, generation, token FROM coord_leases WHERE session_id = %s"


async def read_held(connection: AsyncConnection, session: int) -> dict[int, Lease]:
    """All leases of the session, by shard."""
    rows = await (await connection.execute(_HELD, (session,))).fetchall()
    return {shard: Lease(shard=shard, generation=generation, token=token) for shard, generation, token in rows}
