"""A fresh PostgreSQL with durable commits, for one scenario."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from server.embedded import EmbeddedPostgres
from server.store.database import Database
from server.store.migrate import migrate


@contextlib.asynccontextmanager
async def fresh_database() -> AsyncIterator[tuple[str, Database]]:
    """A migrated database in a temporary folder: its connection URI, and open pools."""
    with (
        tempfile.TemporaryDirectory(prefix="shardwheel-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "data") as server,
    ):
        await migrate(server.dsn)
        database = Database(server.dsn, hot_connections=4, api_connections=4)
        await database.open()
        try:
            yield server.dsn, database
        finally:
            await database.close()
