"""Which coordinator is in charge of a cluster, and what one outside of PostgreSQL needs from it.

A *place* says where leases are granted: "postgres", or "zookeeper:" and the path in it. One place is in charge at a
time; the first node of a cluster writes down its own. Nodes with another one are refused, for each place alone would
give all shards to its own nodes. Whoever changes the place draws a generation, which outranks all leases of the old.
"""

from dataclasses import dataclass
from typing import Final

from server.store.database import Connection, Database
from server.store.migrate import SCHEMA

_CLUSTER_ID: Final = "SELECT cluster_id::text FROM cluster"

# The sequence is shared with the coordinator on PostgreSQL, so the leases of either outrank what the other granted.
_NEWEST_GENERATION: Final = """
SELECT CASE WHEN is_called AND last_value <= %s::bigint THEN %s::bigint ELSE nextval('coord_generations') END
FROM coord_generations, cluster WHERE cluster.coordinator = %s"""

_BE_FIRST: Final = """
UPDATE cluster SET coordinator = %s, coordinator_since = now() WHERE coordinator IS NULL"""
_IN_CHARGE: Final = "SELECT coordinator FROM cluster"
_CHANGE: Final = """
UPDATE cluster SET coordinator = %(place)s, coordinator_since = now() WHERE coordinator IS DISTINCT FROM %(place)s
RETURNING nextval('coord_generations')"""

_STATE: Final = f"""
SELECT c.cluster_id::text AS cluster_id, c.shards, c.coordinator, m.version, m.compatible_from
FROM {SCHEMA}.cluster c CROSS JOIN (
    SELECT version, compatible_from FROM {SCHEMA}.schema_migrations ORDER BY version DESC LIMIT 1) m"""


class OtherCoordinator(Exception):
    """The coordinator in charge is at `in_charge`, this node is set to `ours`."""

    def __init__(self, ours: str, in_charge: str) -> None:
        super().__init__(
            f"this cluster's coordinator is {in_charge}, this node is set to {ours}; give it the cluster's, or change "
            "the cluster's with `shardwheel change-coordinator` and restart its nodes"
        )
        self.ours = ours
        self.in_charge = in_charge


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What the database says of the cluster: its id, its shards, its coordinator's place (empty: none yet), and the
    newest migration with the schema version that it asks of nodes."""

    cluster_id: str
    shards: int
    coordinator: str
    version: int
    compatible_from: int


async def read_cluster_id(database: Database) -> str:
    """The cluster's permanent id."""
    [[cluster_id]] = await database.fetch(_CLUSTER_ID)
    return str(cluster_id)


async def read_cluster_state(database: Database, *, timeout: float) -> ClusterState:
    """Read what health checks compare, within `timeout` seconds."""
    [row] = await database.fetch(_STATE, timeout=timeout, api=False)
    return ClusterState(
        cluster_id=row.cluster_id,
        shards=row.shards,
        coordinator=row.coordinator or "",
        version=row.version,
        compatible_from=row.compatible_from,
    )


async def settle_coordinator(database: Database, place: str) -> None:
    """Make sure that `place` is in charge, at once if there was none before. Raises `OtherCoordinator`."""
    await database.run(_BE_FIRST, (place,), api=True)
    [[in_charge]] = await database.fetch(_IN_CHARGE)
    if in_charge != place:
        raise OtherCoordinator(place, in_charge)


async def newest_generation(database: Database, place: str, known: int) -> int:
    """`known` (0: none) if no newer generation was ever drawn, else a new one, greater than all before.

    Raises `OtherCoordinator` if `place` is not in charge any more.
    """
    found = await database.fetch(_NEWEST_GENERATION, (known, known, place))
    if not found:
        [[in_charge]] = await database.fetch(_IN_CHARGE)
        raise OtherCoordinator(place, in_charge or "none")
    return int(found[0][0])


async def change_coordinator(database: Database, place: str) -> int | None:
    """Put `place` in charge and return the generation drawn for it; None if it was in charge already."""

    async def work(connection: Connection) -> int | None:
        row = await (await connection.execute(_CHANGE, {"place": place})).fetchone()
        return None if row is None else int(row[0])

    return await database.transact(work)
