"""PostgreSQL programs that run in a changed environment: everything else of the machine is left as it is."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from server.embedded import PostgresInstallation


def with_environment(
    folder: Path, installation: PostgresInstallation, variables: Mapping[str, str]
) -> PostgresInstallation:
    """Return the programs of `installation`, of which `postgres` itself runs with `variables` set.

    They are put into `folder`, which every account must be able to pass through.
    """
    folder.mkdir(mode=0o755)
    for program in installation.bin_dir.iterdir():
        settings = [f"{name}={value}" for name, value in variables.items()] if program.name == "postgres" else []
        # PostgreSQL finds its libraries from where its own program lies, so a link would not do.
        script = folder / program.name
        command = shlex.join(["env", *settings, str(program)])
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return PostgresInstallation(bin_dir=folder)
