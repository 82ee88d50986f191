"""The folder of an embedded server: its lock, and what it keeps over restarts beside the data."""

import fcntl
import os
import secrets
from pathlib import Path
from typing import IO

from server.embedded.errors import EmbeddedPostgresError


class ServerFolder:
    """Names the files of the folder, keeps port and password in it, and lets one process at a time use it."""

    def __init__(self, path: Path) -> None:
        """Describe a folder; nothing is touched before `take`."""
        self.path = path.absolute()
        self.pgdata = self.path / "pgdata"
        self.log = self.path / "postgres.log"
        self._port = self.path / "port"
        self._password = self.path / "password"
        self._lock: IO[str] | None = None

    def take(self) -> None:
        """Make the folder if it is missing and lock it.

        Raises `EmbeddedPostgresError` if another process holds it or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+", encoding="ascii")
        except OSError as error:
            raise EmbeddedPostgresError(
                f"cannot use {self.path} for data: {error}; make it writable, or choose another folder"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            raise EmbeddedPostgresError(
                f"{self.path} is in use by process {holder}; stop that process, or choose another folder"
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def release(self) -> None:
        """Give up the lock, if it is held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def port(self) -> int | None:
        """The port of the last start, or None before the first."""
        try:
            text = self._port.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        return int(text) if text.isdecimal() else None

    def remember_port(self, port: int) -> None:
        """Keep a port for the next start."""
        self._port.write_text(f"{port}\n", encoding="ascii")

    def password(self) -> str:
        """Return the password, drawing it on the first call."""
        try:
            return self._password.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            password = secrets.token_urlsafe(24)
            write_secret(self._password, password)
            return password


def write_secret(path: Path, text: str, *, owner: tuple[int, int] | None = None) -> None:
    """Write a file that only its owner (user id, group id) can read, whole or not at all."""
    provisional = path.with_name(f"{path.name}.tmp")
    provisional.unlink(missing_ok=True)
    descriptor = os.open(provisional, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    if owner is not None:
        os.chown(provisional, *owner)
    provisional.rename(path)
