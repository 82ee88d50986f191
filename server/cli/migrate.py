"""`shardwheel migrate`: the schema, made or brought up to date."""

import logging

from server.cli.failure import CommandFailed, InputRefused, one_line, setting
from server.cli.running import run_loop, say
from server.domain.errors import InvalidInput
from server.store.errors import StoreError
from server.store.migrate import VERSION, check_schema
from server.store.migrate import migrate as migrate_schema

DEFAULT_SHARDS = 64
DEFAULT_PARTITIONS = 16
_MAX_SHARDS = 1024
_MAX_PARTITIONS = 64


class _Progress(logging.Handler):
    """Shows each migration when its statements have run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        say(f"  {getattr(record, 'version', 0):04d} {getattr(record, 'migration', '')}")


def migrate(database: str, shards: int | None, partitions: int | None) -> None:
    """Migrate and say what was done. Raises `CommandFailed` or `InvalidInput`."""
    counts = (
        DEFAULT_SHARDS if shards is None else shards,
        DEFAULT_PARTITIONS if partitions is None else partitions,
    )
    check_counts(*counts)
    logger = logging.getLogger("server.store.migrate")
    logger.addHandler(_Progress())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    say("migrating: all or nothing, so stopping it half-way does no harm")
    try:
        found = run_loop(_migrate(database, *counts))
    except StoreError as error:
        raise CommandFailed(f"{setting('database')}: {one_line(error, secret=database)}") from error
    for name, asked, there in zip(("shards", "partitions"), (shards, partitions), found, strict=True):
        if asked is not None and asked != there:
            raise InputRefused(
                f"--{name}: the database has {there}, which is permanent; leave the flag out, or use a new database "
                f"(got '{asked}')"
            )


def check_counts(shards: int, partitions: int) -> None:
    """Raise `InvalidInput` for numbers that no cluster can have."""
    if not 1 <= shards <= _MAX_SHARDS or shards & (shards - 1):
        raise InvalidInput("shards", shards, f"has to be a power of two from 1 to {_MAX_SHARDS}")
    if not 1 <= partitions <= _MAX_PARTITIONS or shards % partitions:
        raise InvalidInput(
            "partitions", partitions, f"has to be a divisor of the number of shards, {shards}, and at most 64"
        )


async def _migrate(database: str, shards: int, partitions: int) -> tuple[int, int]:
    applied = await migrate_schema(database, shards=shards, partitions=partitions)
    found = await check_schema(database)
    done = f"applied {', '.join(applied)}" if applied else "nothing to apply"
    say(f"{done}; schema version {VERSION}, {found[0]} shards in {found[1]} partitions")
    return found
