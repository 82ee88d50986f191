"""Leases of workers: one row per incarnation, renewed in batches by whichever node hears it.

`ended_at` is set once and for all (goodbye, superseded). A lease that merely ran out can be renewed again as long as
the row is not ended: attempts that were not yet given back then simply go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from server.store.arrays import Int8Array
from server.store.database import Database
from server.store.insert import milliseconds

REGISTER: Final = """
INSERT INTO workers AS w (namespace_id, name, incarnation, sdk, handlers, lease_until)
VALUES (%s, %s, %s, %s, %s::jsonb, now() + %s::int8 * interval '1 millisecond')
ON CONFLICT (namespace_id, name, incarnation) DO UPDATE
SET lease_until = GREATEST(w.lease_until, EXCLUDED.lease_until), sdk = EXCLUDED.sdk, handlers = EXCLUDED.handlers
WHERE w.ended_at IS NULL
RETURNING w.id
"""

OTHERS: Final = """
SELECT id, incarnation, lease_until > now() FROM workers
WHERE namespace_id = %s AND name = %s AND incarnation <> %s AND ended_at IS NULL
"""

# A worker is renewed only once a third of its lease has passed: about one write per five seconds and worker. A lease
# that ran out is renewed as well, as long as the row is not ended. That is asked in a form which fits no partial index:
# the planner has to go by the ids, not through all live workers.
RENEW: Final = """
WITH due AS (
    SELECT w.id FROM unnest(%s::int8[]) AS u(id) JOIN workers w ON w.id = u.id
    WHERE COALESCE(w.ended_at, 'infinity') = 'infinity'
      AND w.lease_until < now() + %s::int8 * interval '1 millisecond' * 2 / 3
    ORDER BY w.id FOR UPDATE OF w),
renewed AS (
    UPDATE workers w SET lease_until = now() + %s::int8 * interval '1 millisecond' FROM due WHERE w.id = due.id)
SELECT now()
"""

END: Final = """
WITH mine AS (SELECT w.id FROM workers w WHERE w.id = ANY(%s::int8[]) ORDER BY w.id FOR UPDATE)
UPDATE workers w SET ended_at = COALESCE(w.ended_at, now()), end_reason = COALESCE(w.end_reason, %s),
    lease_until = LEAST(w.lease_until, now())
FROM mine WHERE w.id = mine.id
"""

# The stream was reset and the worker did not come back: its lease ends now, but it may still return and renew it.
EXPIRE_LEASE: Final = """
UPDATE workers SET lease_until = now() - interval '1 millisecond'
WHERE id = %s AND ended_at IS NULL AND lease_until > now()
"""

DEAD: Final = """
SELECT w.id FROM unnest(%s::int8[]) AS u(id) JOIN workers w ON w.id = u.id
WHERE w.ended_at IS NOT NULL OR w.lease_until < LEAST(now(), %s::timestamptz)
"""

FORGET: Final = """
WITH old AS (
    SELECT id FROM workers WHERE lease_until < now() - %s::int8 * interval '1 millisecond' ORDER BY id LIMIT 1000
    FOR UPDATE SKIP LOCKED)
DELETE FROM workers w USING old WHERE w.id = old.id
"""


@dataclass(frozen=True, slots=True)
class OtherIncarnation:
    """Another incarnation of a worker's name that has not ended."""

    worker_id: int
    incarnation: int
    leased: bool


async def register(
    database: Database, namespace_id: int, name: str, incarnation: int, sdk: str, handlers: bytes, lease: timedelta
) -> int | None:
    """Start or renew the lease of a worker's incarnation and return its id; None if the incarnation has ended."""
    params = (namespace_id, name, incarnation, sdk, handlers.decode(), milliseconds(lease))
    rows = await database.run(REGISTER, params)
    return rows[0][0] if rows else None


async def other_incarnations(
    database: Database, namespace_id: int, name: str, incarnation: int
) -> list[OtherIncarnation]:
    """Return the incarnations of the same name that have not ended."""
    rows = await database.run(OTHERS, (namespace_id, name, incarnation))
    return [OtherIncarnation(*row) for row in rows]


async def renew(database: Database, worker_ids: Sequence[int], lease: timedelta) -> datetime:
    """Renew the leases that need it; return the database clock."""
    span = milliseconds(lease)
    now: datetime = (await database.run(RENEW, (Int8Array(worker_ids), span, span)))[0][0]
    return now


async def end(database: Database, worker_ids: Sequence[int], reason: str) -> None:
    """End incarnations for good."""
    await database.run(END, (Int8Array(worker_ids), reason))


async def expire_lease(database: Database, worker_id: int) -> None:
    """End the lease of a worker whose stream was reset and that did not come back."""
    await database.run(EXPIRE_LEASE, (worker_id,))


async def dead(database: Database, worker_ids: Sequence[int], *, as_of: datetime) -> list[int]:
    """Return those workers that have ended, or whose lease is over and was so at `as_of`."""
    return [row[0] for row in await database.run(DEAD, (Int8Array(worker_ids), as_of))]


async def forget(database: Database, after: timedelta) -> None:
    """Delete rows of workers whose lease ended more than `after` ago."""
    await database.run(FORGET, (milliseconds(after),))


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker for people."""

    worker_id: int
    name: str
    incarnation: int
    sdk: str
    handlers: bytes
    started_at: datetime
    lease_until: datetime


LIVE: Final = """
SELECT id, name, incarnation, sdk, handlers, started_at, lease_until FROM workers
WHERE namespace_id = %s AND ended_at IS NULL AND lease_until > now() ORDER BY name LIMIT 10000
"""


async def live(database: Database, namespace_id: int) -> list[WorkerRow]:
    """Return the workers of a namespace whose lease runs, by name."""
    return [WorkerRow(*row) for row in await database.run(LIVE, (namespace_id,), api=True)]


KEEP: Final = """
UPDATE workers SET lease_until = now() + %s::int8 * interval '1 millisecond'
WHERE namespace_id = %s AND name = %s AND incarnation = %s AND ended_at IS NULL
RETURNING id
"""


async def keep(database: Database, namespace_id: int, name: str, incarnation: int, lease: timedelta) -> bool:
    """Renew the lease of an incarnation by its name; return whether it has not ended."""
    params = (milliseconds(lease), namespace_id, name, incarnation)
    return bool(await database.run(KEEP, params, api=True))
