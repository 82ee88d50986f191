"""What namespaces with quotas have: pending jobs are counted, up to the quota, and rates exchanged between nodes."""

from collections.abc import Mapping, Sequence
from typing import Final

from server.store.arrays import Float8Array, Int4Array, TextArray
from server.store.database import Database, Statement

# Rates that are older were not written by a node that still submits.
RATE_LIFE_S: Final = 5

# No index begins with the namespace: each shard is looked at for each handler of the namespace, as the claim does it.
PENDING: Final = Statement("""
SELECT count(*), COALESCE(sum(octet_length(q.payload)), 0)::int8 FROM (
    (SELECT x.payload FROM unnest(%s::int4[]) AS s(shard)
     CROSS JOIN (SELECT id FROM handlers WHERE namespace_id = %s::int4 ORDER BY id) h
     CROSS JOIN LATERAL (
         SELECT j.payload FROM {jobs} j WHERE j.state = 0 AND j.shard = s.shard AND j.handler_id = h.id
         LIMIT %s::int8) x
     LIMIT %s::int8)
    UNION ALL
    (SELECT x.payload FROM unnest(%s::int4[]) AS s(shard)
     CROSS JOIN LATERAL (
         SELECT j.payload FROM {jobs} j WHERE j.state = 2 AND j.shard = s.shard AND j.namespace_id = %s::int4
         LIMIT %s::int8) x
     LIMIT %s::int8)) q
""")

PUT_RATES: Final = """
INSERT INTO submit_rates AS r (namespace_id, node, rate)
SELECT w.namespace_id, %s::text, w.rate FROM unnest(%s::int4[], %s::float8[]) AS w(namespace_id, rate)
ORDER BY w.namespace_id
ON CONFLICT (namespace_id, node) DO UPDATE SET rate = EXCLUDED.rate, changed_at = now()
"""
READ_RATES: Final = """
SELECT namespace_id, sum(rate) FROM submit_rates
WHERE namespace_id = ANY(%s::int4[]) AND node <> %s AND changed_at > now() - %s::int8 * interval '1 second'
GROUP BY namespace_id
"""

SCHEDULES: Final = """
SELECT (SELECT count(*) FROM (SELECT FROM schedule_names WHERE namespace_id = %s::int4 LIMIT %s::int8) n),
    (SELECT count(*) FROM schedule_names WHERE namespace_id = %s::int4 AND name = ANY(%s::text[]))
"""


async def count_pending(
    database: Database, partition_of: Sequence[int], namespace_id: int, most: int
) -> tuple[int, int]:
    """Return how many jobs of a namespace are pending, and the bytes of their payloads.

    Counting stops in a partition once `most` jobs have been found: what is returned then is a lower bound.
    """
    jobs = size = 0
    for partition in range(max(partition_of) + 1):
        shards = Int4Array([shard for shard, place in enumerate(partition_of) if place == partition])
        rest = max(1, most - jobs)
        params = (shards, namespace_id, rest, rest, shards, namespace_id, rest, rest)
        [(more, bytes_)] = await database.run(PENDING.on(partition), params, api=True)
        jobs, size = jobs + more, size + bytes_
        if jobs >= most:
            break
    return jobs, size


async def exchange_rates(database: Database, node: str, rates: Mapping[int, float]) -> dict[int, float]:
    """Tell the other nodes how many jobs per second come through this one, and return what comes through them."""
    ids = Int4Array(list(rates))
    await database.run(PUT_RATES, (node, ids, Float8Array(list(rates.values()))), api=True)
    rows = await database.run(READ_RATES, (ids, node, RATE_LIFE_S), api=True)
    return {namespace_id: float(rate) for namespace_id, rate in rows}


async def count_schedules(database: Database, namespace_id: int, names: Sequence[str], most: int) -> tuple[int, int]:
    """Return how many schedules a namespace has, up to `most`, and how many of these names are among them."""
    [(count, known)] = await database.run(SCHEDULES, (namespace_id, most, namespace_id, TextArray(names)), api=True)
    return count, known
