"""What is looked for in the logs of nodes and of PostgreSQL after a run."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOVED: Final = "moved to another partition"
_TRACEBACK: Final = re.compile(r"^.*\n?Traceback \(most recent call last\):\n(?:[ |+].*\n|\n)*.*$", re.MULTILINE)

_LEADER: Final = re.compile(r"^(?P<at>\S+Z) .*leader changed .*\bleader=(?P<leader>\S+)", re.MULTILINE)


def latest_leader(files: Iterable[Path]) -> str | None:
    """Return the leader that the latest word of any node names; None if there is none."""
    words: list[tuple[str, str]] = []
    for path in files:
        if path.exists():
            words += [(one["at"], one["leader"]) for one in _LEADER.finditer(path.read_text(errors="replace"))]
    named = [word for word in words if word[1] != "None"]
    return max(named)[1] if named else None


def moved_partitions(files: Iterable[Path]) -> int:
    """Return how often PostgreSQL refused a statement because its row had moved to another partition."""
    return sum(path.read_text(errors="replace").count(MOVED) for path in files if path.exists())


def tracebacks(files: Iterable[Path]) -> list[str]:
    """Return the tracebacks of nodes, each with the line before it and the error after it."""
    return [
        match[0] for path in files if path.exists() for match in _TRACEBACK.finditer(path.read_text(errors="replace"))
    ]
