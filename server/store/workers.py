"""Leases of workers: one row per incarnation, renewed in batches by whichever node hears it.

`ended_at` is set once and for all (goodbye, superseded). A lease that merely ran out can be renewed again as long as
the row is not ended: attempts that were not yet given back then simply go on.

A worker has a stream to every node, and no node knows the others' streams. So a node whose stream broke puts its doubt
into the row, and any node that still hears the worker takes it out again when it renews. A doubt that stood for the
whole grace is the proof that the worker has come back to no node: then it is lost, whatever its lease says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from server.domain.worker_lease import Admission, Losses, Renewal
from server.store.arrays import Int8Array
from server.store.database import Database
from server.store.errors import Refused
from server.store.insert import milliseconds

_UNIQUE_VIOLATION: Final = "23505"

# Whether the other incarnation of the name lives: some node hears it, or has not yet had the time to say so. The row is
# locked before it is judged, and a name has one row that has not ended: of two newcomers one comes first, and the other
# one meets it. `ended` is counted so that it is done before the row goes in.
ADMIT: Final = """
WITH mine AS MATERIALIZED (
    SELECT count(*) AS ended FROM workers w
    WHERE w.namespace_id = %s::int4 AND w.name = %s::text AND w.incarnation = %s::int8 AND w.ended_at IS NOT NULL),
others AS MATERIALIZED (
    SELECT w.id, w.id = ANY(%s::int8[]) AS heard,
        %s::bool AND w.lost_at IS NULL AND w.lease_until > now() AND w.doubted_at IS NULL AS leased,
        %s::bool AND w.lost_at IS NULL AND w.lease_until > now()
            AND w.doubted_at > now() - %s::int8 * interval '1 millisecond' AS open
    FROM workers w
    WHERE w.namespace_id = %s::int4 AND w.name = %s::text AND w.incarnation <> %s::int8 AND w.ended_at IS NULL
    ORDER BY w.id FOR UPDATE),
verdict AS MATERIALIZED (
    SELECT COALESCE(bool_or(o.heard), false) AS heard, COALESCE(bool_or(o.leased), false) AS leased,
        COALESCE(bool_or(o.open), false) AS open,
        (SELECT ended FROM mine) > 0 AS ended
    FROM others o),
superseded AS (
    UPDATE workers w SET ended_at = now(), end_reason = 'superseded', lease_until = LEAST(w.lease_until, now())
    FROM others o, verdict v WHERE w.id = o.id AND NOT (v.heard OR v.leased OR v.open OR v.ended) RETURNING w.id),
admitted AS (
    INSERT INTO workers AS w (namespace_id, name, incarnation, identity, sdk, handlers, lease_until)
    SELECT %s::int4, %s::text, %s::int8, %s::text, %s::text, %s::jsonb, now() + %s::int8 * interval '1 millisecond'
    FROM verdict v, (SELECT count(*) FROM superseded) done WHERE NOT (v.heard OR v.leased OR v.open OR v.ended)
    ON CONFLICT (namespace_id, name, incarnation) DO UPDATE
    SET lease_until = GREATEST(w.lease_until, EXCLUDED.lease_until), sdk = EXCLUDED.sdk, handlers = EXCLUDED.handlers,
        identity = EXCLUDED.identity, doubted_at = NULL, lost_at = NULL
    WHERE w.ended_at IS NULL AND w.identity IN ('', EXCLUDED.identity)
    RETURNING w.id)
SELECT (SELECT id FROM admitted), v.heard, v.leased, v.open, ARRAY(SELECT id FROM superseded) FROM verdict v
"""

# A lease reaches from when the worker was heard, not from when that is written down. It is written once a third of it
# has passed, about every five seconds, or when something has to be set right: a doubt, or a lease that was last written
# some time before the worker fell silent, or by a clock that has gone back since. A lease that ran out is renewed as
# well, as long as the row is not ended. That is asked in a form which fits no partial index: the planner has to go by
# the ids, not through all live workers.
RENEW: Final = """
WITH given AS MATERIALIZED (
    SELECT u.id, now() - u.age * interval '1 millisecond' AS heard_at, u.age > %s::int8 AS quiet
    FROM unnest(%s::int8[], %s::int8[]) AS u(id, age)),
due AS (
    SELECT w.id, g.heard_at + %s::int8 * interval '1 millisecond' AS until, g.heard_at
    FROM given g JOIN workers w ON w.id = g.id
    WHERE COALESCE(w.ended_at, 'infinity') = 'infinity'
      AND (w.doubted_at IS NOT NULL OR w.lost_at < g.heard_at
           OR w.lease_until < g.heard_at + %s::int8 * interval '1 millisecond' * 2 / 3
           OR w.lease_until > now() + %s::int8 * interval '1 millisecond' * 2
           OR (g.quiet AND w.lease_until < g.heard_at + (%s::int8 - 250) * interval '1 millisecond'))
    ORDER BY w.id FOR UPDATE OF w),
renewed AS (
    UPDATE workers w SET doubted_at = NULL,
        lease_until = CASE WHEN w.lease_until > now() + %s::int8 * interval '1 millisecond' * 2 THEN due.until
                           ELSE GREATEST(w.lease_until, due.until) END,
        lost_at = CASE WHEN w.lost_at < due.heard_at THEN NULL ELSE w.lost_at END
    FROM due WHERE w.id = due.id)
SELECT now(), ARRAY(SELECT g.id FROM given g JOIN workers w ON w.id = g.id WHERE w.ended_at IS NOT NULL)
"""

END: Final = """
WITH mine AS (SELECT w.id FROM workers w WHERE w.id = ANY(%s::int8[]) ORDER BY w.id FOR UPDATE)
UPDATE workers w SET ended_at = COALESCE(w.ended_at, now()), end_reason = COALESCE(w.end_reason, %s),
    lease_until = LEAST(w.lease_until, now())
FROM mine WHERE w.id = mine.id
"""

DOUBT: Final = """
WITH mine AS (SELECT w.id FROM workers w WHERE w.id = ANY(%s::int8[]) ORDER BY w.id FOR UPDATE)
UPDATE workers w SET doubted_at = now() FROM mine WHERE w.id = mine.id AND COALESCE(w.ended_at, 'infinity') = 'infinity'
"""

# Lost is not ended: the worker may still return, and renew its lease.
LOSE: Final = """
WITH given_up AS (
    SELECT w.id FROM workers w
    WHERE w.id = ANY(%s::int8[]) AND w.doubted_at <= now() - %s::int8 * interval '1 millisecond'
    ORDER BY w.id FOR UPDATE),
lost AS (
    UPDATE workers w SET lost_at = COALESCE(w.lost_at, now()),
        lease_until = LEAST(w.lease_until, now() - interval '1 millisecond')
    FROM given_up g WHERE w.id = g.id RETURNING w.id)
SELECT ARRAY(SELECT id FROM lost),
    ARRAY(SELECT w.id FROM workers w WHERE w.id = ANY(%s::int8[]) AND w.doubted_at IS NOT NULL
          AND COALESCE(w.ended_at, 'infinity') = 'infinity')
"""

DEAD: Final = """
SELECT w.id FROM unnest(%s::int8[]) AS u(id) JOIN workers w ON w.id = u.id
WHERE w.ended_at IS NOT NULL OR w.lost_at IS NOT NULL OR w.lease_until < LEAST(now(), %s::timestamptz)
"""

FORGET: Final = """
WITH old AS (
    SELECT id FROM workers WHERE lease_until < now() - %s::int8 * interval '1 millisecond' ORDER BY id LIMIT 1000
    FOR UPDATE SKIP LOCKED)
DELETE FROM workers w USING old WHERE w.id = old.id
"""


async def admit(
    database: Database,
    namespace_id: int,
    name: str,
    incarnation: int,
    sdk: str,
    handlers: bytes,
    lease: timedelta,
    *,
    identity: str = "",
    heard: Sequence[int] = (),
    alone: bool = False,
    settling: timedelta = timedelta(0),
) -> Admission:
    """Start or renew the lease of a worker's incarnation, unless another one of its name lives; else that one ends.

    An incarnation belongs to the `identity` that it came with first: to others it is as if it had ended.

    The other one lives if this node hears it (`heard` are ids), or if its lease runs without a doubt: then another
    node hears it. A doubt younger than `settling` says nothing yet. A node that is `alone` in its cluster believes
    only itself.
    """
    who = (namespace_id, name, incarnation)
    judged = (Int8Array(heard), not alone, not alone, milliseconds(settling))
    params = (*who, *judged, *who, *who, identity, sdk, handlers.decode(), milliseconds(lease))
    for tries_left in (2, 1, 0):
        try:
            [row] = await database.run(ADMIT, params)
        except Refused as error:
            # Another newcomer was first. Now its row is there to be met.
            if error.sqlstate != _UNIQUE_VIOLATION or not tries_left:
                raise
        else:
            return Admission(*row)
    raise AssertionError("unreachable")


async def renew(database: Database, heard: Mapping[int, timedelta], lease: timedelta, quiet: timedelta) -> Renewal:
    """Renew the leases that need it, of workers that were `heard` so long ago; one is falling silent after `quiet`."""
    span = milliseconds(lease)
    ages = Int8Array([milliseconds(age) for age in heard.values()])
    params = (milliseconds(quiet), Int8Array(list(heard)), ages, span, span, span, span, span)
    [(now, ended)] = await database.run(RENEW, params)
    return Renewal(now, ended)


async def end(database: Database, worker_ids: Sequence[int], reason: str) -> None:
    """End incarnations for good."""
    await database.run(END, (Int8Array(worker_ids), reason))


async def doubt(database: Database, worker_ids: Sequence[int]) -> None:
    """Note that a stream of each of these workers broke just now."""
    await database.run(DOUBT, (Int8Array(worker_ids),))


async def lose(database: Database, worker_ids: Sequence[int], grace: timedelta) -> Losses:
    """Give those workers up that have been in doubt for at least `grace`."""
    ids = Int8Array(worker_ids)
    [(lost, in_doubt)] = await database.run(LOSE, (ids, milliseconds(grace), ids))
    return Losses(lost, in_doubt)


async def dead(database: Database, worker_ids: Sequence[int], *, as_of: datetime) -> list[int]:
    """Return those workers that have ended or are lost, or whose lease is over and was so at `as_of`."""
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


FIND: Final = (
    "SELECT id FROM workers WHERE namespace_id = %s AND name = %s AND incarnation = %s AND identity IN ('', %s)"
)


async def find(database: Database, namespace_id: int, name: str, incarnation: int, identity: str = "") -> int | None:
    """Return the number of an incarnation of an identity, whether it lives or not; None if there was none lately."""
    rows = await database.run(FIND, (namespace_id, name, incarnation, identity), api=True)
    return rows[0][0] if rows else None


# The process lives, and yet has no stream perhaps: a doubt stays, and its grace begins anew.
KEEP: Final = """
UPDATE workers SET lease_until = now() + %s::int8 * interval '1 millisecond', lost_at = NULL,
    doubted_at = CASE WHEN doubted_at IS NOT NULL THEN now() END
WHERE namespace_id = %s AND name = %s AND incarnation = %s AND identity IN ('', %s) AND ended_at IS NULL
RETURNING id
"""


async def keep(
    database: Database, namespace_id: int, name: str, incarnation: int, lease: timedelta, identity: str = ""
) -> bool:
    """Renew the lease of an incarnation by its name; return whether it is of that identity and has not ended."""
    params = (milliseconds(lease), namespace_id, name, incarnation, identity)
    return bool(await database.run(KEEP, params, api=True))
