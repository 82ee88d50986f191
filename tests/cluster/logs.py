"""What is looked for in the logs of nodes and of PostgreSQL after a run."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOVED: Final = "moved to another partition"
_TRACEBACK: Final = re.compile(r"^.*\n?Traceback \(most recent call last\):\n(?:[ |+].*\n|\n)*.*$", re.MULTILINE)


def moved_partitions(files: Iterable[Path]) -> int:
    """Return how often PostgreSQL refused a statement because its row had moved to another partition."""
    return sum(path.read_text(errors="replace").count(MOVED) for path in files if path.exists())


def tracebacks(files: Iterable[Path]) -> list[str]:
    """Return the tracebacks of nodes, each with the line before it and the error after it."""
    return [
        match[0] for path in files if path.exists() for match in _TRACEBACK.finditer(path.read_text(errors="replace"))
    ]
