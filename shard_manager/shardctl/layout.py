"""Tables and details laid out for a width: columns shrink before a line breaks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.cells import cell_len
from rich.text import Text

from shard_manager.shardctl.text import fit, fold, printable

_GAP = "  "
_STYLES = {
    "completed": "green",
    "up": "green",
    "active": "green",
    "create": "green",
    "running": "cyan",
    "update": "cyan",
    "pending": "",
    "paused": "yellow",
    "draining": "yellow",
    "cancelled": "yellow",
    "skipped": "yellow",
    "delete": "red",
    "failed": "red",
    "unhealthy": "red",
    "serving": "green",
    "moving": "cyan",
    "held": "yellow",
    "drained": "yellow",
    "unowned": "red",
    "unplanned": "red",
    "evicted": "red",
    "gone": "red",
}


class Block(Protocol):
    """Something printed by lines."""

    def lines(self, width: int) -> Iterator[Text]:
        """The lines, none wider than `width` terminal cells if that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    One with a `minimum` shrinks to it if the table is too wide, and cuts its cells: at the end, or with `keep_end` in
    the middle.
    """

    title: str
    minimum: int | None = None
    right: bool = False
    state: bool = False
    keep_end: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text, folded where it is too long."""

    text: str

    def lines(self, width: int) -> Iterator[Text]:
        """See Block."""
        for piece in fold(self.text, width):
            yield Text(piece)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles, without rules, so that `awk` and people can read it. `empty` stands for no rows at all."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: str = "none"

    def lines(self, width: int) -> Iterator[Text]:
        """See Block."""
        if not self.rows:
            yield Text(self.empty)
            return
        rows = [[printable(cell) for cell in row] for row in self.rows]
        widths = self._widths(rows, width)
        yield self._line([column.title for column in self.columns], widths, "bold")
        for row in rows:
            yield self._line(row, widths, None)

    def _widths(self, rows: Iterable[Sequence[str]], available: int) -> list[int]:
        widths = [cell_len(column.title) for column in self.columns]
        for row in rows:
            widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - available
        while excess > 0:
            spare = [
                width - max(column.minimum, cell_len(column.title)) if column.minimum is not None else 0
                for width, column in zip(widths, self.columns, strict=True)
            ]
            if max(spare) <= 0:
                break
            widest = max(range(len(widths)), key=lambda index: widths[index] if spare[index] > 0 else -1)
            widths[widest] -= 1
            excess -= 1
        return widths

    def _line(self, cells: Sequence[str], widths: Sequence[int], style: str | None) -> Text:
        line = Text()
        for cell, width, column in zip(cells, widths, self.columns, strict=True):
            shown = fit(cell, width, keep_end=column.keep_end)
            padding = " " * (width - cell_len(shown))
            cell_style = style or (_STYLES.get(cell, "") if column.state else "")
            if line:
                line.append(_GAP)
            line.append(padding + shown if column.right else shown + padding, cell_style)
        line.rstrip()
        return line


@dataclass(frozen=True, slots=True)
class Details:
    """Names with their values, one pair per line; long values go on below their start. Empty values are left out."""

    pairs: Sequence[tuple[str, str]]

    def lines(self, width: int) -> Iterator[Text]:
        """See Block."""
        shown = [(name, value) for name, value in self.pairs if value]
        indent = max((cell_len(name) for name, _ in shown), default=0) + len(_GAP)
        for name, value in shown:
            style = _STYLES.get(value, "") if name == "state" else ""
            for number, piece in enumerate(fold(value, width - indent)):
                label = name if number == 0 else ""
                yield Text.assemble((label.ljust(indent), "bold"), (piece, style))
