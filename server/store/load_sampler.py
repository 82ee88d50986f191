"""Samples of the cluster's load that several onlookers share."""

import asyncio
import time
from collections.abc import Collection
from typing import Final

from server.store.arrays import Int4Array
from server.store.database import Database
from server.store.status import LoadSample, sample_load

_NAMES: Final = """
SELECT h.id, n.name, h.name FROM handlers h JOIN namespaces n ON n.id = h.namespace_id WHERE h.id = ANY(%s::int4[])"""


class LoadSampler:
    """Takes a sample when the latest is too old; a crowd of onlookers costs no more than one."""

    def __init__(self, database: Database, partitions: int) -> None:
        self._database = database
        self._partitions = partitions
        self._sampling = asyncio.Lock()
        self._sample: LoadSample | None = None
        self._sampled_at = 0.0

    async def sample(self, max_age_s: float) -> LoadSample:
        """Return a sample that was begun at most `max_age_s` seconds before this call. Raises `StoreError`."""
        asked_at = time.monotonic()
        async with self._sampling:
            # Whoever waited for the lock takes the sample that was begun after it had asked.
            if self._sample is None or self._sampled_at < asked_at - max_age_s:
                begun = time.monotonic()
                self._sample = await sample_load(self._database, self._partitions)
                self._sampled_at = begun
            return self._sample

    async def handler_names(self, handler_ids: Collection[int]) -> dict[int, tuple[str, str]]:
        """Return (namespace, handler) by the handler's id. Raises `StoreError`."""
        rows = await self._database.run(_NAMES, (Int4Array(sorted(handler_ids)),), api=True)
        return {handler_id: (namespace, name) for handler_id, namespace, name in rows}
