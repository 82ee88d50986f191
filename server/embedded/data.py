"""The data of an embedded server: made on the first start, checked on every later one."""

import os
import shutil
from pathlib import Path
from typing import Final

from server.embedded import remains
from server.embedded.account import Account
from server.embedded.errors import EmbeddedPostgresError
from server.embedded.folder import ServerFolder, write_secret
from server.embedded.installation import PostgresInstallation

#: The superuser that owns everything in the server.
ROLE: Final = "shardwheel"
#: The database that exists from the start.
DATABASE: Final = "shardwheel"

_INITDB_TIMEOUT_S = 120.0


def prepare(folder: ServerFolder, installation: PostgresInstallation, account: Account, *, sync: bool) -> None:
    """Bring the data into a state that a server can start on, whatever the last run left behind.

    `sync` says whether fresh data are forced to the disk. Raises `EmbeddedPostgresError` if the data cannot be made,
    are of another major version, or are in use by processes that cannot be ended.
    """
    if not folder.pgdata.exists():
        _make(folder, installation, account, sync=sync)
        return
    version_file = folder.pgdata / "PG_VERSION"
    found = version_file.read_text(encoding="ascii").strip() if version_file.exists() else "unknown"
    if found != str(installation.major):
        raise EmbeddedPostgresError(
            f"the data in {folder.pgdata} are of PostgreSQL {found}, the programs of {installation.major}; "
            "dump them with the old programs and load them into a new folder, or remove the folder"
        )
    remains.end_processes(folder.pgdata)
    remains.remove_stale_pid_file(folder.pgdata)


def _make(folder: ServerFolder, installation: PostgresInstallation, account: Account, *, sync: bool) -> None:
    # A kill half-way leaves the data under their provisional name, never something that looks complete.
    fresh = folder.path / "pgdata.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    os.chown(fresh, account.uid, account.gid)
    password_file = folder.path / "password.new"
    write_secret(password_file, folder.password(), owner=(account.uid, account.gid))
    initdb: list[str | Path] = [
        installation.program("initdb"),
        f"--pgdata={fresh}",
        f"--username={ROLE}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
    ]
    if not sync:
        initdb.append("--no-sync")
    account.run(initdb, timeout_s=_INITDB_TIMEOUT_S)
    password_file.unlink()
    single: list[str | Path] = [installation.program("postgres"), "--single", "-D", fresh, "postgres"]
    output = account.run(single, timeout_s=_INITDB_TIMEOUT_S, input_text=f"CREATE DATABASE {DATABASE};\n")
    # Single-user mode reports a failed statement by its output only.
    if "ERROR:" in output:
        raise EmbeddedPostgresError(f"the database {DATABASE} cannot be made:\n{output}")
    fresh.rename(folder.pgdata)
