"""How far behind the oldest snapshot is: what PostgreSQL has to keep for it, every claim may have to walk past.

A role sees the sessions of others only with `pg_read_all_stats`; replication slots and prepared transactions it sees
anyway.
"""

from datetime import datetime
from typing import Final

from server.domain.diagnosis import Holder, HolderKind
from server.store.database import Database

_OLDEST: Final = """
SELECT q.kind, q.what, q.age, q.since, now() FROM (
    SELECT 'session' AS kind, concat_ws(' ', usename, 'pid', pid, state, application_name) AS what,
           age(COALESCE(backend_xmin, backend_xid))::int8 AS age, xact_start AS since
    FROM pg_stat_activity
    WHERE COALESCE(backend_xmin, backend_xid) IS NOT NULL AND pid <> pg_backend_pid() AND backend_type <> 'walsender'
      AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT 'standby', concat_ws(' ', application_name, client_addr), age(backend_xmin)::int8, NULL
    FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
    UNION ALL
    SELECT 'slot', slot_name, GREATEST(age(xmin), age(catalog_xmin))::int8, NULL
    FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
    UNION ALL
    SELECT 'prepared', gid, age(transaction)::int8, prepared FROM pg_prepared_xacts
    WHERE database = current_database()) q
ORDER BY q.age DESC LIMIT 20
"""


async def oldest_holders(database: Database) -> list[Holder]:
    """Return the oldest holders of the database that this role can see, the oldest first; at most 20."""
    rows = await database.run(_OLDEST, api=True)
    return [_holder(*row) for row in rows]


def _holder(kind: str, what: str, age: int, since: datetime | None, now: datetime) -> Holder:
    open_s = None if since is None else (now - since).total_seconds()
    return Holder(kind=HolderKind(kind), what=what, age=age, open_s=open_s)
