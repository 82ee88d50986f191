"""Real PostgreSQL servers and databases for tests."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from server.embedded import EmbeddedPostgres, PostgresInstallation, StopMode
from tests.support.scratch import make_folder

#: Names the bin folder of the PostgreSQL that the tests run on; the bundled one if it is not set.
BIN_VARIABLE = "SHARDWHEEL_TEST_PG_BIN"

# A commit survives a kill -9 of PostgreSQL with these as well; only a crash of the operating system could lose it.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "autovacuum_naptime": "10s",
    # In the data's folder, for a killed server cannot remove shared memory of the other kinds.
    "dynamic_shared_memory_type": "mmap",
}


class PostgresServer:
    """A PostgreSQL server in a temporary folder that tests may stop, kill and start again on the same data.

    The port stays the same. The server and its folder go away with `close`, and also if the test run is killed.
    """

    def __init__(
        self,
        *,
        installation: PostgresInstallation | None = None,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Describe a server. Data that `folder` already holds are served; without a folder, a new one is made."""
        self._server = EmbeddedPostgres(
            folder or make_folder("shardwheel-test-pg-"),
            installation=installation or default_installation(),
            settings={**_SETTINGS, **(settings or {})},
            ephemeral=True,
        )
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        return self._server.pid

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def folder(self) -> Path:
        """The server's folder; it holds `pgdata`, the log, and files with the port and the password."""
        return self._server.data_dir

    @property
    def log_file(self) -> Path:
        """The server's log, for tests that look for what must not appear in it."""
        return self._server.log_file

    @property
    def major(self) -> int:
        """The major version of the running programs."""
        with psycopg.connect(self.dsn("postgres")) as connection:
            return connection.info.server_version // 10_000

    def start(self) -> None:
        self._server.start()

    def stop(self, mode: StopMode = StopMode.FAST) -> None:
        self._server.stop(mode)

    def kill9(self) -> None:
        """Kill all of the server's processes at once."""
        self._server.kill()

    def restart(self, mode: StopMode = StopMode.FAST) -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._server.close()

    def dsn(self, database: str = "shardwheel") -> str:
        """Return the connection URI of a database."""
        return self._server.dsn_of(database)

    def create_database(self, template: str | None = None) -> str:
        """Create a database, a copy of `template` if given, and return its name. The template must not be in use.

        Role settings that hold inside a database are not copied.
        """
        name = f"t{os.getpid()}_{next(self._numbers)}"
        # For many tables, copying their files is faster than writing their contents to the log.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template or "template0")))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, ending the connections to it; nothing happens if there is none or the server is down."""
        if self.running:
            self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


def default_installation() -> PostgresInstallation:
    """Return the PostgreSQL that tests run on."""
    folder = os.environ.get(BIN_VARIABLE)
    return PostgresInstallation(bin_dir=Path(folder)) if folder else PostgresInstallation.bundled()


def installations() -> list[PostgresInstallation]:
    """Return every PostgreSQL at hand, one per major version, oldest first: the default, and Debian's packages."""
    found = {default_installation().major: default_installation()}
    for postgres in sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        candidate = PostgresInstallation(bin_dir=postgres.parent)
        found.setdefault(candidate.major, candidate)
    return [found[major] for major in sorted(found)]


def oldest_and_newest() -> list[PostgresInstallation]:
    """Return the oldest and the newest PostgreSQL at hand; one if there is only one."""
    every = installations()
    return [every[0]] if len(every) == 1 else [every[0], every[-1]]
