"""Work on whole tables that any node may do: time partitions ahead, retention, rows of long dead workers."""

import logging
from datetime import timedelta
from typing import Final

from server.store import workers
from server.store.database import Connection, Database
from server.store.partitions import Retention, drop_expired_partitions, ensure_time_partitions

log = logging.getLogger(__name__)

EVERY: Final = timedelta(minutes=10)


class Maintenance:
    """Makes partitions ahead of time and drops those past their retention; safe on several nodes at once."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention

    async def run_once(self) -> None:
        """Do what is due."""
        made = await self._database.transact(ensure_time_partitions)
        if made:
            log.info("time partitions made", extra={"partitions": made})

        async def drop(connection: Connection) -> list[str]:
            return await drop_expired_partitions(connection, self._retention)

        await self._database.transact(drop)
        # History and attempts name workers by the id of their row: it is kept as long as they are.
        keep = max(self._retention.completed, self._retention.unsuccessful) + timedelta(days=1)
        await workers.forget(self._database, keep)
