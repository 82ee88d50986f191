"""Installing Debian's packages, where this process may."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 600.0


class InstallFailed(Exception):
    """Packages could not be installed; the text says what was run and why it failed."""


def may_install() -> bool:
    """Return whether this process may install packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_command(packages: Sequence[str]) -> list[str]:
    """Return the command that installs packages."""
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def install(packages: Sequence[str], there: Callable[[], bool]) -> None:
    """Install packages unless what is needed is `there` once other processes have done installing.

    Raises `InstallFailed`.
    """
    with (Path(tempfile.gettempdir()) / "shardwheel-apt.lock").open("w") as lock:
        # Two at once would be in each other's way.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there():
            _run(["apt-get", "update"])
            _run(install_command(packages))


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode:
        raise InstallFailed(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
