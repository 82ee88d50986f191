"""The shard table: epochs and the fence-in.

A node may fence in only with a lease token that is newer than the one stored; an unconditional bump would let a stalled
node fence out the live owner. Each fence-in raises the epoch, and every fenced statement names the epoch it expects.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from server.store.arrays import Int4Array, Int8Array
from server.store.blockers import run_against_own
from server.store.database import Database, Query
from server.store.errors import Locked

# Connections that shards which are locked take at once.
_AT_A_TIME: Final = 3

_FENCE_IN: Final = """
WITH want AS (
    SELECT s.shard, w.generation, w.token
    FROM unnest(%s::int4[], %s::int8[], %s::int8[]) AS w(shard, generation, token)
    JOIN shards s ON s.shard = w.shard
    WHERE (s.generation, s.token) < (w.generation, w.token)
    ORDER BY s.shard FOR UPDATE OF s{wait})
UPDATE shards s
SET epoch = s.epoch + 1, generation = want.generation, token = want.token, owner = %s, owner_incarnation = %s,
    acquired_at = now()
FROM want WHERE s.shard = want.shard
RETURNING s.shard, s.epoch
"""
FENCE_IN: Final = _FENCE_IN.replace("{wait}", "")
FENCE_IN_FREE: Final = _FENCE_IN.replace("{wait}", " SKIP LOCKED")

# After a fence-in whose answer was lost: rows that carry my token and incarnation are mine. They are locked, which is
# written down, so that the answer waits for a synchronous standby: after a failover an epoch must not come twice.
READ_BACK: Final = """
SELECT s.shard, s.epoch
FROM unnest(%s::int4[], %s::int8[], %s::int8[]) AS w(shard, generation, token)
JOIN shards s ON s.shard = w.shard AND s.generation = w.generation AND s.token = w.token
WHERE s.owner_incarnation = %s
ORDER BY s.shard FOR SHARE OF s
"""

# Waits for any statement of mine that still runs under FOR SHARE; a read after it is conclusive.
BUMP: Final = """
UPDATE shards SET epoch = epoch + 1
WHERE shard = %s AND epoch = %s AND owner_incarnation = %s
RETURNING epoch
"""

RELEASE: Final = """
WITH mine AS (
    SELECT s.shard FROM unnest(%s::int4[], %s::int8[]) AS w(shard, epoch)
    JOIN shards s ON s.shard = w.shard AND s.epoch = w.epoch
    WHERE s.owner_incarnation = %s
    ORDER BY s.shard FOR UPDATE OF s)
UPDATE shards s SET owner = NULL, owner_incarnation = NULL FROM mine WHERE s.shard = mine.shard
"""

LIST: Final = "SELECT shard, epoch, owner, owner_incarnation, acquired_at FROM shards ORDER BY shard"


LAST_OWNERS: Final = "SELECT shard, owner FROM shards WHERE owner IS NOT NULL"


@dataclass(frozen=True, slots=True)
class ShardRow:
    """One shard as the database knows it."""

    shard: int
    epoch: int
    owner: str | None
    owner_incarnation: int | None
    acquired_at: datetime | None


async def fence_in(
    database: Database, leases: Sequence[tuple[int, int, int]], node: str, incarnation: int
) -> dict[int, int]:
    """Raise the epoch of each (shard, generation, token) whose token is newer; return the epochs of those shards.

    If others hold locks on the rows for too long, which a node that is stopped half-way through a claim does, back ends
    of this role that stand in the way are terminated. Shards that stay locked are left out; raises `Locked` if none is
    left.
    """
    try:
        rows = await _fence_in(database, FENCE_IN, leases, node, incarnation)
    except Locked:
        rows = await _fence_in_against_locks(database, leases, node, incarnation)
    if len(rows) < len(leases):
        rows = dict(await database.run(READ_BACK, (*_arrays(leases), incarnation))) | rows
    return rows


async def _fence_in(
    database: Database, query: Query, leases: Sequence[tuple[int, int, int]], node: str, incarnation: int
) -> dict[int, int]:
    return dict(await database.run(query, (*_arrays(leases), node, incarnation)))


async def _fence_in_against_locks(
    database: Database, leases: Sequence[tuple[int, int, int]], node: str, incarnation: int
) -> dict[int, int]:
    """Fence in where nobody is in the way at once, then shard by shard."""
    rows = await _fence_in(database, FENCE_IN_FREE, leases, node, incarnation)
    turns = asyncio.Semaphore(_AT_A_TIME)

    async def one(lease: tuple[int, int, int]) -> dict[int, int] | Locked:
        async with turns:
            try:
                return dict(await run_against_own(database, FENCE_IN, (*_arrays([lease]), node, incarnation)))
            except Locked as error:
                return error

    answers = await asyncio.gather(*(one(lease) for lease in leases if lease[0] not in rows))
    locked = [answer for answer in answers if isinstance(answer, Locked)]
    for answer in answers:
        if not isinstance(answer, Locked):
            rows |= answer
    if locked and not rows:
        raise locked[0]
    return rows


def _arrays(leases: Sequence[tuple[int, int, int]]) -> tuple[Int4Array, Int8Array, Int8Array]:
    return (
        Int4Array([shard for shard, _, _ in leases]),
        Int8Array([generation for _, generation, _ in leases]),
        Int8Array([token for _, _, token in leases]),
    )


async def bump(database: Database, shard: int, epoch: int, incarnation: int) -> int | None:
    """Raise the epoch of a shard that this node owns at `epoch`; None if it owns it no more."""
    rows = await database.run(BUMP, (shard, epoch, incarnation))
    return rows[0][0] if rows else None


async def release(database: Database, epochs: Sequence[tuple[int, int]], incarnation: int) -> None:
    """Clear the owner of each (shard, epoch) that this node still owns at that epoch."""
    shards, numbers = Int4Array([shard for shard, _ in epochs]), Int8Array([epoch for _, epoch in epochs])
    await database.run(RELEASE, (shards, numbers, incarnation))


async def last_owners(database: Database) -> dict[int, str]:
    """Return shard to node of all shards that somebody has fenced in and not released since."""
    return dict(await database.run(LAST_OWNERS))


async def list_shards(database: Database) -> list[ShardRow]:
    """Return all shards."""
    return [ShardRow(*row) for row in await database.run(LIST, api=True)]
