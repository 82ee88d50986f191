"""Two PostgreSQL servers, of which one is the synchronous standby of the other, and the failover between them."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, LiteralString, Self

import psutil
import psycopg

from server.embedded import PostgresInstallation
from server.embedded.data import DATABASE
from server.embedded.port import LOOPBACK
from tests.support.postgres import PostgresServer, default_installation
from tests.support.scratch import make_folder
from tests.support.waiting import wait_until

_BASE_BACKUP_S: Final = 120.0
_PROMOTED_S: Final = 30
_CAUGHT_UP_S: Final = 60.0

_IN_SYNC: Final[LiteralString] = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


class PostgresPair:
    """A primary that acknowledges no commit before its standby has it on disk.

    Clients reach whoever is the primary by `dsn`, which names both. After a `failover`, `rebuild` makes the server that
    was killed the standby of the other.
    """

    def __init__(
        self,
        *,
        installation: PostgresInstallation | None = None,
        settings: Mapping[str, str] | None = None,
        folders: tuple[Path, Path] | None = None,
    ) -> None:
        """Describe two servers of the same programs and settings, with their data in `folders`, or in new ones."""
        self._installation = installation or default_installation()
        self._settings = settings
        self._second = folders[1] if folders else make_folder("shardwheel-test-pg-")
        self.primary = self._server(folders[0] if folders else None)
        self.standby: PostgresServer | None = None

    def __enter__(self) -> Self:
        self.primary.start()
        try:
            self._add_standby(self._second)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def in_sync(self) -> bool:
        """Whether commits wait for the standby, and it follows."""
        return self.standby is not None and self._ask(_IN_SYNC) == 1

    def dsn(self, database: str = DATABASE) -> str:
        """Return a connection URI with both servers, the same over failovers."""
        assert self.standby is not None, "the pair has no standby"
        ports = sorted((self.primary.port, self.standby.port))
        own = self.primary.dsn(database)
        hosts = ",".join(f"{LOOPBACK}:{port}" for port in ports)
        return f"{own.replace(f'{LOOPBACK}:{self.primary.port}', hosts)}?target_session_attrs=read-write"

    @contextlib.contextmanager
    def standby_held(self) -> Iterator[None]:
        """Let the standby stand still, alive: no commit is acknowledged meanwhile."""
        assert self.standby is not None, "the pair has no standby"
        processes = psutil.Process(self.standby.pid).children()
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def failover(self) -> None:
        """Kill the primary (-9) and promote the standby. The killed one stays down until `rebuild`."""
        standby = self.standby
        assert standby is not None, "the pair has no standby"
        self.primary.kill9()
        with psycopg.connect(standby.dsn("postgres"), autocommit=True, connect_timeout=10) as connection:
            # Else it would wait, before it acknowledges anything, for a standby that it does not have.
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            promoted = connection.execute("SELECT pg_promote(true, %s)", (_PROMOTED_S,)).fetchone()
            assert promoted == (True,), "the standby was not promoted"
            connection.execute("SELECT pg_reload_conf()")
        self.primary, self.standby = standby, self.primary

    def rebuild(self) -> None:
        """Make the server that is down the synchronous standby again, on fresh data."""
        assert self.standby is not None
        assert not self.standby.running
        folder = self.standby.folder
        shutil.rmtree(folder / "pgdata")
        self._add_standby(folder)

    def close(self) -> None:
        """Stop both, and remove their data."""
        if self.standby is not None:
            self.standby.close()
        self.primary.close()

    def _add_standby(self, folder: Path) -> None:
        # One password for both: roles are copied with the data.
        shutil.copy2(self.primary.folder / "password", folder / "password")
        self._base_backup(folder)
        self.standby = self._server(folder)
        self.standby.start()
        with psycopg.connect(self.primary.dsn("postgres"), autocommit=True, connect_timeout=10) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self.in_sync, timeout_s=_CAUGHT_UP_S, what="a standby that is in step")

    def _server(self, folder: Path | None) -> PostgresServer:
        return PostgresServer(installation=self._installation, settings=self._settings, folder=folder)

    def _base_backup(self, folder: Path) -> None:
        data = folder / "pgdata"
        source = self.primary.dsn("postgres").removesuffix("/postgres")
        command = [str(self._installation.program("pg_basebackup")), f"--pgdata={data}", f"--dbname={source}"]
        options = ["--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"]
        subprocess.run([*command, *options], check=True, timeout=_BASE_BACKUP_S, capture_output=True)
        owner = (self.primary.folder / "pgdata").stat()
        for path in (data, *data.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)

    def _ask(self, query: LiteralString) -> int:
        with psycopg.connect(self.primary.dsn("postgres"), autocommit=True, connect_timeout=10) as connection:
            row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])
