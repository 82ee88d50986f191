"""The shard table: epochs and the fence-in.

A node may fence in only with a lease token that is newer than the one stored; an unconditional bump would let a stalled
node fence out the live owner. Each fence-in raises the epoch, and every fenced statement names the epoch it expects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from server.store.arrays import Int4Array, Int8Array
from server.store.database import Database

FENCE_IN: Final = """
WITH want AS (
    SELECT s.shard, w.generation, w.token
    FROM unnest(%s::int4[], %s::int8[], %s::int8[]) AS w(shard, generation, token)
    JOIN shards s ON s.shard = w.shard
    WHERE (s.generation, s.token) < (w.generation, w.token)
    ORDER BY s.shard FOR UPDATE OF s)
UPDATE shards s
SET epoch = s.epoch + 1, generation = want.generation, token = want.token, owner = %s, owner_incarnation = %s,
    acquired_at = now()
FROM want WHERE s.shard = want.shard
RETURNING s.shard, s.epoch
"""

# After a fence-in whose answer was lost: rows that carry my token and incarnation are mine.
READ_BACK: Final = """
SELECT s.shard, s.epoch
FROM unnest(%s::int4[], %s::int8[], %s::int8[]) AS w(shard, generation, token)
JOIN shards s ON s.shard = w.shard AND s.generation = w.generation AND s.token = w.token
WHERE s.owner_incarnation = %s
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
    """Raise the epoch of each (shard, generation, token) whose token is newer; return the epochs of those shards."""
    arrays = (
        Int4Array([shard for shard, _, _ in leases]),
        Int8Array([generation for _, generation, _ in leases]),
        Int8Array([token for _, _, token in leases]),
    )
    rows = dict(await database.run(FENCE_IN, (*arrays, node, incarnation)))
    if len(rows) < len(leases):
        rows = dict(await database.run(READ_BACK, (*arrays, incarnation))) | rows
    return rows


async def bump(database: Database, shard: int, epoch: int, incarnation: int) -> int | None:
    """Raise the epoch of a shard that this node owns at `epoch`; None if it owns it no more."""
    rows = await database.run(BUMP, (shard, epoch, incarnation))
    return rows[0][0] if rows else None


async def release(database: Database, epochs: Sequence[tuple[int, int]], incarnation: int) -> None:
    """Clear the owner of each (shard, epoch) that this node still owns at that epoch."""
    shards, numbers = Int4Array([shard for shard, _ in epochs]), Int8Array([epoch for _, epoch in epochs])
    await database.run(RELEASE, (shards, numbers, incarnation))


async def list_shards(database: Database) -> list[ShardRow]:
    """Return all shards."""
    return [ShardRow(*row) for row in await database.run(LIST, api=True)]
