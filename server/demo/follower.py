"""Reads execution logs while they grow."""

from collections.abc import Sequence
from pathlib import Path

from server.demo.execution_log import parse_line
from server.demo.tally import Tally


class Follower:
    """Feeds what is appended to some files into a tally."""

    def __init__(self, paths: Sequence[Path], tally: Tally) -> None:
        self._offsets = dict.fromkeys(paths, 0)
        self._tally = tally

    def read(self) -> bool:
        """Take in all whole lines that were added since the last call; return whether there were any."""
        found = False
        for path, offset in self._offsets.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(offset)
                text = file.read()
            # A line that is just being written is left for the next time.
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            for line in whole.splitlines():
                self._tally.add(parse_line(line))
            found = found or bool(whole)
        return found
