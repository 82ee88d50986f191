"""The operating system account that PostgreSQL runs under.

PostgreSQL refuses to run as root. An ordinary user runs it as himself; root hands it to the owner of the existing
data, else to the account `postgres`, else to `nobody`.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from server.embedded.errors import EmbeddedPostgresError
from server.embedded.installation import PostgresInstallation

_CANDIDATES = ("postgres", "nobody")
_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user and group, and the way to become them."""

    uid: int
    gid: int
    #: Command that becomes the account and runs its arguments; empty if a plain change of user does.
    launcher: tuple[str, ...] = ()

    @classmethod
    def choose(cls, installation: PostgresInstallation, folder: Path, owner: int | None) -> "Account":
        """Return the account for a server whose data lie in `folder` and belong to `owner`, if they exist.

        Raises `EmbeddedPostgresError` if no account can run the programs and reach the folder.
        """
        if os.geteuid() != 0:
            if owner is not None and owner != os.geteuid():
                raise EmbeddedPostgresError(
                    f"the data in {folder} belong to user id {owner}, not to you ({os.geteuid()}); "
                    "run as that user or as root, or choose another folder"
                )
            return cls(uid=os.geteuid(), gid=os.getegid())
        installation.program("postgres")
        uid, gid = _owner_ids(owner) if owner else _service_ids()
        # A program of its own changes the user: doing it between fork and exec runs the fork handlers of whatever is
        # loaded here, and those of gRPC crash the child while its threads are busy.
        setpriv = shutil.which("setpriv")
        ids = (f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
        plain = cls(uid=uid, gid=gid, launcher=() if setpriv is None else (setpriv, *ids, "--"))
        if plain._reaches(installation, folder):
            return plain
        # Below a private folder, such as root's home, nobody else may pass. The capability lets the account pass
        # without opening the folder to all other users, and costs no safety: whoever is root here could do more.
        if setpriv is not None:
            # The secure bit makes access(2), with which PostgreSQL looks for its own programs, respect the capability.
            capability = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup")
            privileged = cls(uid=uid, gid=gid, launcher=(setpriv, *ids, *capability, "--"))
            if privileged._reaches(installation, folder):
                return privileged
        raise EmbeddedPostgresError(
            f"PostgreSQL does not run as root, and user id {uid} cannot reach both {installation.bin_dir} "
            f"and {folder}; run as an ordinary user, or use folders that all users may enter"
        )

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        stdin: int | IO[bytes] = subprocess.DEVNULL,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes] = subprocess.STDOUT,
    ) -> subprocess.Popen[bytes]:
        """Start a program under this account, in a session of its own, so that a Ctrl-C does not reach it."""
        change_user = os.geteuid() == 0 and not self.launcher
        return subprocess.Popen(
            [*self.launcher, *map(str, command)],
            user=self.uid if change_user else None,
            group=self.gid if change_user else None,
            extra_groups=[] if change_user else None,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=_environment(),
            start_new_session=True,
        )

    def run(self, command: Sequence[str | Path], *, timeout_s: float, input_text: str = "") -> str:
        """Run a program to its end under this account and return what it printed.

        Raises `EmbeddedPostgresError` with that output if it fails or takes longer than `timeout_s`.
        """
        try:
            process = self.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise EmbeddedPostgresError(f"{command[0]} does not start: {error}") from error
        with process:
            try:
                output, _ = process.communicate(input_text.encode(), timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise EmbeddedPostgresError(f"{command[0]} did not end within {timeout_s:.0f} s") from error
        text = output.decode(errors="replace")
        if process.returncode != 0:
            raise EmbeddedPostgresError(f"{command[0]} failed with exit code {process.returncode}:\n{text}")
        return text

    def _reaches(self, installation: PostgresInstallation, folder: Path) -> bool:
        try:
            self.run([installation.program("postgres"), "--version"], timeout_s=_PROBE_TIMEOUT_S)
            self.run(["test", "-x", folder / "."], timeout_s=_PROBE_TIMEOUT_S)
        except EmbeddedPostgresError:
            return False
        return True


def _owner_ids(uid: int) -> tuple[int, int]:
    try:
        return uid, pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid, uid


def _service_ids() -> tuple[int, int]:
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as root, and there is no account {' or '.join(_CANDIDATES)}; run as an ordinary user"
    )


def _environment() -> Mapping[str, str]:
    # PGDATA, PGOPTIONS and the like of the user's own databases must not reach this server.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
