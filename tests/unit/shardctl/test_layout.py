"""Tables and details stay inside their width, and nothing from elsewhere reaches the terminal as it is."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from shard_manager.shardctl.layout import Block, Column, Details, Line, Table
from shard_manager.shardctl.text import fit, fold, printable

COLUMNS = (Column("ID"), Column("NAME", minimum=10), Column("ERROR", minimum=8), Column("TRY", right=True))


def plain(block: Block, width: int = 80) -> list[str]:
    return [line.plain for line in block.lines(width)]


def test_columns_are_as_wide_as_their_widest_cell_and_lines_have_no_trailing_blanks() -> None:
    assert plain(Table(COLUMNS, [("1", "a", "", "1/4"), ("4096", "longer", "boom", "12/4")])) == [
        "ID    NAME    ERROR   TRY",
        "1     a               1/4",
        "4096  longer  boom   12/4",
    ]


def test_a_wide_table_shrinks_its_flexible_columns_and_never_the_others() -> None:
    rows = [("9007199254740993", "n" * 200, "e" * 300, "1/4")]
    lines = plain(Table(COLUMNS, rows))
    assert max(map(len, lines)) == 80
    assert lines[1].startswith("9007199254740993  nnn")
    assert lines[1].endswith("…  1/4")
    assert lines[1].count("…") == 2


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), min_size=1, max_size=5), st.integers(20, 120))
def test_no_line_of_a_table_is_wider_than_asked(rows: list[tuple[str, str]], width: int) -> None:
    table = Table((Column("A", minimum=6), Column("B", minimum=6)), rows)
    lines = plain(table, width)
    assert len(lines) == len(rows) + 1
    assert max(map(cell_len, lines)) <= width
    assert not any(unicodedata.category(char) == "Cc" for line in lines for char in line)


def test_an_empty_table_says_so() -> None:
    assert plain(Table(COLUMNS, [], empty="no jobs")) == ["no jobs"]


def test_details_leave_out_what_is_empty_and_continue_long_values_below() -> None:
    block = Details([("id", "7"), ("error", ""), ("labels", " ".join(f"key{n}=value" for n in range(12)))])
    lines = plain(block, 40)
    assert lines[0] == "id      7"
    assert lines[1].startswith("labels  key0=value key1=value")
    assert all(line.startswith("        key") for line in lines[2:])
    assert max(map(len, lines)) <= 40


def test_prose_is_broken_between_words() -> None:
    assert plain(Line("a day matches if either does, which is the rule of POSIX"), 30) == [
        "a day matches if either does,",
        "which is the rule of POSIX",
    ]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=200), st.integers(2, 40))
def test_folding_keeps_every_character_but_blanks(text: str, width: int) -> None:
    pieces = fold(text, width)
    assert max(map(cell_len, pieces)) <= width
    assert "".join("".join(pieces).split()) == "".join(printable(text.expandtabs(4)).split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines", "two\\nlines"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x07\x00\x9b", "\\x07\\x00\\x9b"),
        ("abc\u202ecba", "abc\\x202ecba"),
        ("Grüße, 世界", "Grüße, 世界"),
    ],
)
def test_control_characters_become_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_cut_text_is_marked() -> None:
    assert fit("short", 5) == "short"
    assert fit("longer", 5) == "long…"
    assert fit("世界世界", 5) == "世界…"
    assert fit("backup:daily-1", 10, keep_end=True) == "backup…y-1"
    assert fit("backup:daily-2", 10, keep_end=True) == "backup…y-2"
