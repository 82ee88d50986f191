"""`shardwheel migrate`: the schema, made or brought up to date."""

import logging
from pathlib import Path

from server.access.secret import digest_of
from server.cli.failure import CommandFailed, InputRefused, one_line, setting
from server.cli.running import run_loop, say
from server.cli.token_file import read_token, write_token
from server.domain.access import parse_scopes
from server.domain.errors import InvalidInput
from server.store import tokens
from server.store.errors import StoreError
from server.store.migrate import VERSION, check_schema
from server.store.migrate import migrate as migrate_schema

ADMIN = "admin"
"""Holder of the token in the file."""
DEFAULT_SHARDS = 64
DEFAULT_PARTITIONS = 16
_MAX_SHARDS = 1024
_MAX_PARTITIONS = 64


class _Progress(logging.Handler):
    """Shows each migration when its statements have run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        say(f"  {getattr(record, 'version', 0):04d} {getattr(record, 'migration', '')}")


def migrate(database: str, shards: int | None, partitions: int | None, admin_token_file: Path | None = None) -> None:
    """Migrate and say what was done. Raises `CommandFailed` or `InvalidInput`."""
    token = None if admin_token_file is None else read_token(admin_token_file)
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
    if admin_token_file is not None:
        run_loop(_admit(database, admin_token_file, token))


def check_counts(shards: int, partitions: int) -> None:
    """Raise `InvalidInput` for numbers that no cluster can have."""
    if not 1 <= shards <= _MAX_SHARDS or shards & (shards - 1):
        raise InvalidInput("shards", shards, f"has to be a power of two from 1 to {_MAX_SHARDS}")
    if not 1 <= partitions <= _MAX_PARTITIONS or shards % partitions:
        raise InvalidInput(
            "partitions", partitions, f"has to be a divisor of the number of shards, {shards}, and at most 64"
        )


async def _admit(database: str, file: Path, token: str | None) -> None:
    """Let whoever holds the token of the file do everything."""
    if token is None:
        # Before the database knows it: a token that nobody has would be of no use to anybody.
        token = write_token(file)
        say(f"a new admin token is in {file}")
    try:
        everything = parse_scopes(["*:admin"])
        new = await tokens.ensure(database, digest_of(token), everything, name=ADMIN, created_by="migrate")
    except tokens.RevokedToken as error:
        raise InputRefused(
            f"--admin-token-file: the token in {file} was revoked; put another one there, or remove the file"
        ) from error
    except StoreError as error:
        raise CommandFailed(f"{setting('database')}: {one_line(error, secret=database)}") from error
    say("the admin token is stored; access needs a token from now on" if new else "the admin token is known already")


async def _migrate(database: str, shards: int, partitions: int) -> tuple[int, int]:
    applied = await migrate_schema(database, shards=shards, partitions=partitions)
    found = await check_schema(database)
    done = f"applied {', '.join(applied)}" if applied else "nothing to apply"
    say(f"{done}; schema version {VERSION}, {found[0]} shards in {found[1]} partitions")
    return found
