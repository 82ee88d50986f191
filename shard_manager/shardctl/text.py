"""Text from elsewhere, made safe for a terminal and cut to a width."""

import re

from rich.cells import cell_len, chop_cells, set_cell_size

# C0, DEL and C1 controls, and the marks that turn the direction of text: what could move the cursor or hide text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def printable(text: str) -> str:
    """The text on one line, with control characters written as escapes."""
    return _UNSAFE.sub(lambda match: _ESCAPES.get(match[0], f"\\x{ord(match[0]):02x}"), text)


def counted(count: int, thing: str, things: str = "") -> str:
    """The count with the noun in its number: "1 node", "2 nodes"; `things` is a plural that is not formed by -s."""
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def fit(text: str, width: int, *, keep_end: bool = False) -> str:
    """The text cut to `width` terminal cells, with an ellipsis where something is missing.

    With `keep_end` that is in the middle: for names that begin alike and differ at their ends.
    """
    if cell_len(text) <= width:
        return text
    end = chop_cells(text[::-1], (width - 1) // 3)[0][::-1] if keep_end and width >= 4 else ""
    return set_cell_size(text, max(width - 1 - cell_len(end), 0)).rstrip() + "…" + end


def fold(text: str, width: int) -> list[str]:
    """The lines of the text, made safe, each broken into pieces of at most `width` terminal cells.

    A line is broken behind a space if its second half has one. Only spaces at the ends of pieces are lost.
    """
    pieces: list[str] = []
    for line in text.split("\n"):
        rest = printable(line.removesuffix("\r").expandtabs(4))
        while cell_len(rest) > max(width, 1):
            piece = chop_cells(rest, max(width, 1))[0]
            space = piece.rfind(" ") + 1
            at = space if space > len(piece) // 2 else len(piece)
            pieces.append(rest[:at].rstrip())
            rest = rest[at:]
        pieces.append(rest)
    return pieces
