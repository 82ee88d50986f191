"""What a coordinator outside of PostgreSQL needs from it: whose cluster this is, and generations for its leases."""

from server.store.database import Database

_CLUSTER_ID = "SELECT cluster_id::text FROM cluster"

# The sequence is shared with the coordinator on PostgreSQL, so the leases of either outrank what the other granted.
_NEWEST_GENERATION = """
SELECT CASE WHEN is_called AND last_value <= %s::bigint THEN %s::bigint ELSE nextval('coord_generations') END
FROM coord_generations"""


async def read_cluster_id(database: Database) -> str:
    """The cluster's permanent id."""
    [[cluster_id]] = await database.fetch(_CLUSTER_ID)
    return str(cluster_id)


async def newest_generation(database: Database, known: int) -> int:
    """`known` (0: none) if no newer generation was ever drawn, else a new one, greater than all before."""
    [[generation]] = await database.fetch(_NEWEST_GENERATION, (known, known))
    return int(generation)
