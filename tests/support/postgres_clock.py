"""A PostgreSQL server whose wall clock can be moved while it runs; everybody else's stays.

It is done by libfaketime (Debian's package `libfaketime`), which is loaded into PostgreSQL alone and reads an offset
from a file whenever PostgreSQL asks for the time. Its monotonic clock, by which it waits, is not moved.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from server.embedded import PostgresInstallation
from tests.support.postgres import default_installation
from tests.support.postgres_programs import with_environment

MISSING: Final = "libfaketime is not installed (Debian and Ubuntu: apt-get install libfaketime)"
_PLACES: Final = ("/usr/lib", "/usr/local/lib", "/usr/lib64")


def find_library(places: Iterable[str] = _PLACES) -> Path | None:
    """Return libfaketime, or None if this machine does not have it."""
    for place in places:
        for found in sorted(Path(place).glob("**/faketime/libfaketime.so.1")):
            return found
    return None


def ahead_by(offset_s: float) -> dict[str, str]:
    """Return the environment of a process whose clock is to be `offset_s` ahead. Raises LookupError with `MISSING`."""
    return _variables() | {"FAKETIME": f"{offset_s:+.3f}s"}


def _variables() -> dict[str, str]:
    library = find_library()
    if library is None:
        raise LookupError(MISSING)
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # A killed process could not remove it.
        "FAKETIME_DISABLE_SHM": "1",
    }


class MovableClock:
    """The clock of the servers that run on `installation()`."""

    def __init__(self, folder: Path) -> None:
        """Keep the offset in `folder`, which every account must be able to read. Raises LookupError with `MISSING`."""
        self._variables = _variables()
        self._folder = folder
        self._file = folder / "clock"
        self.offset_s = 0.0
        self.set(0.0)

    def installation(self, programs: PostgresInstallation | None = None) -> PostgresInstallation:
        """Return PostgreSQL programs that live by this clock; to be called once."""
        variables = self._variables | {"FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1"}
        return with_environment(self._folder / "bin", programs or default_installation(), variables)

    def set(self, offset_s: float) -> None:
        """Let the clock be `offset_s` ahead of the machine's, from now on."""
        # Written anew under another name: a reader sees the old offset or the new one, never half a file.
        provisional = self._file.with_suffix(".new")
        provisional.write_text(f"{offset_s:+.3f}s\n", encoding="ascii")
        provisional.chmod(0o644)
        provisional.rename(self._file)
        self.offset_s = offset_s

    def jump(self, by_s: float) -> None:
        """Move the clock."""
        self.set(self.offset_s + by_s)
