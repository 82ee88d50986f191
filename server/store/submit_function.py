"""What nodes do for `shardwheel.submit`, the function by which applications store jobs in their own transactions."""

from collections.abc import Sequence
from typing import Final

from server.domain.due import DueJob
from server.domain.policies import Policies, to_document
from server.store.arrays import Int8Array
from server.store.database import Database

PUBLISH: Final = """
UPDATE cluster SET max_payload_bytes = w.payload, job_defaults = w.defaults
FROM (SELECT %s::int4, %s::jsonb) AS w(payload, defaults)
WHERE max_payload_bytes <> w.payload OR job_defaults <> w.defaults
"""

# Parked jobs are left out: they come up by themselves when there is room for them.
PENDING: Final = """
SELECT x.priority, x.due_at, x.id, x.shard, x.handler_id FROM unnest(%s::int8[]) AS u(id)
JOIN jobs x ON x.id = u.id AND x.shard = (u.id & 4095)::int4
WHERE x.state = 0 AND x.namespace_id = %s::int4
"""


async def publish_settings(database: Database, *, max_payload_bytes: int, defaults: Policies) -> None:
    """Let the function go by this node's settings; among nodes that differ, the one that started last counts."""
    await database.run(PUBLISH, (max_payload_bytes, to_document(defaults).decode()), api=True)


async def pending_jobs(database: Database, namespace_id: int, job_ids: Sequence[int]) -> list[DueJob]:
    """Return those jobs of the namespace that are pending."""
    return [DueJob(*row) for row in await database.run(PENDING, (Int8Array(job_ids), namespace_id), api=True)]
