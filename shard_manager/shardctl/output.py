"""What a command prints: tables and details for people, or one JSON document for programs.

Results go to stdout; progress, notes and errors to stderr, so that stdout can be piped as it is.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, Union

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.layout import Block
from shard_manager.shardctl.settings import Format

Json: TypeAlias = Union[bool, int, float, str, Sequence["Json"], Mapping[str, "Json"], None]  # noqa: UP007

PIPED_WIDTH = 80


class Output:
    """Writes results in the wanted format."""

    def __init__(self, output_format: Format) -> None:
        self._format = output_format
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def emit(self, data: Json, *blocks: Block) -> None:
        """Prints `data` if JSON is wanted, else the blocks with an empty line between them."""
        if self._format is Format.JSON:
            indent = 2 if sys.stdout.isatty() else None
            print(json.dumps(data, ensure_ascii=False, indent=indent, allow_nan=False))
            return
        width = self._console.width if self._console.is_terminal else PIPED_WIDTH
        for number, block in enumerate(blocks):
            if number:
                self._console.print()
            for line in block.lines(width):
                self._console.print(line)

    def note(self, *lines: str) -> None:
        """Tells people something that is not part of the result."""
        for line in lines:
            print(line, file=sys.stderr)


class Screen:
    """The whole terminal, drawn anew with each `show`; as it was before, afterwards.

    Raises RefusedInputError if stdout is no terminal.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        if not self._console.is_terminal:
            raise RefusedInputError("error: stdout is no terminal; give --once, or -o json")
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @property
    def height(self) -> int:
        """Lines of the terminal."""
        return self._console.height

    def show(self, *blocks: Block) -> None:
        """Draws the blocks with an empty line between them; what does not fit is cut."""
        lines: list[Text] = []
        for block in blocks:
            lines += [Text()] if lines else []
            lines += block.lines(self._console.width)
        text = Text("\n", no_wrap=True, overflow="crop").join(lines[: self.height])
        self._live.update(text, refresh=True)


def progress_bar() -> Progress:
    """Progress with a count, on stderr; it shows nothing unless stderr is a terminal, and vanishes at the end."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def spinner() -> Progress:
    """Progress without an end in sight, under the same rules as `progress_bar`."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
