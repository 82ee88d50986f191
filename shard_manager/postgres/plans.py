"""Statements on `coord_plans`: the one plan, and the generation of this coordinator."""

from typing import Final

from shard_manager import plan_codec
from shard_manager.coordinator import Plan
from shard_manager.errors import CoordinatorError, NotLeader, PlanConflict, SessionLost
from shard_manager.postgres.connection import AsyncConnection

_BEGIN_GENERATION: Final = """
INSERT INTO coord_plans (generation)
SELECT nextval('coord_generations') WHERE NOT EXISTS (SELECT FROM coord_plans)
ON CONFLICT DO NOTHING"""

# Somebody drew a newer generation: another kind of coordinator was in charge meanwhile, and its leases outrank ours.
_RENEW_GENERATION: Final = """
UPDATE coord_plans SET generation = nextval('coord_generations')
WHERE generation < (SELECT last_value FROM coord_generations)"""


async def ensure_generation(connection: AsyncConnection) -> None:
    """Make sure that leases granted from now on outrank those of any other coordinator that was in charge before."""
    await connection.execute(_BEGIN_GENERATION)
    await connection.execute(_RENEW_GENERATION)


_READ: Final = "SELECT version, CASE WHEN version <> %s THEN body END FROM coord_plans"


async def read_plan(connection: AsyncConnection, known: Plan | None) -> Plan | None:
    """The stored plan, None before the first; `known` itself if its version is the stored one. Raises `PlanCorrupt`."""
    row = await (await connection.execute(_READ, (known.version if known is not None else 0,))).fetchone()
    if row is None or row[0] == 0:
        return None
    return plan_codec.decode(row[1]) if row[1] is not None else known


_WRITE: Final = """
UPDATE coord_plans SET version = %(version)s, body = %(body)s, written_by = %(session)s, written_at = clock_timestamp()
WHERE version = %(version)s - 1
  AND %(session)s = (SELECT min(session_id) FROM coord_sessions WHERE expires_at > clock_timestamp())"""

_STANDING: Final = """
SELECT coalesce((SELECT version FROM coord_plans), 0), live.session_id, live.node
FROM coord_sessions live WHERE live.expires_at > clock_timestamp() ORDER BY live.session_id"""


async def write_plan(connection: AsyncConnection, session: int, plan: Plan) -> CoordinatorError | None:
    """Write `plan` over the version before it; the answer is why not, if it was refused."""
    arguments = {"version": plan.version, "body": plan_codec.encode(plan), "session": session}
    written = await connection.execute(_WRITE, arguments)
    if written.rowcount == 1:
        return None
    standing = await (await connection.execute(_STANDING)).fetchall()
    nodes: dict[int, str] = {number: node for _, number, node in standing}
    if session not in nodes:
        return SessionLost("")
    if min(nodes) != session:
        return NotLeader(nodes[session], nodes[min(nodes)])
    return PlanConflict(plan.version - 1, standing[0][0])
