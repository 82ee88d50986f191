"""Types of options beyond those that typer knows: counts, durations, instants and labels."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypedDict, TypeVar

import typer

from shard_manager.shardctl.times import parse_duration, parse_instant, parse_since

T = TypeVar("T")


class OptionType(TypedDict):
    """Keyword arguments of `typer.Option` that give an option its type."""

    parser: Callable[[str], object]
    metavar: str


def _parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Lets a ValueError's text reach the user: typer shows only the value of a parser that raises one."""

    def parser(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def _parse_count(text: str) -> int:
    # 0 stands for "the default" on the wire, which nobody means who writes it.
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:20]) < 2**31:
        raise ValueError(f"{text!r} is not a whole number from 1 to {2**31 - 1}")
    return int(text)


def _parse_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 <= int(text[:20]) <= 2**50:
        raise ValueError(f"{text!r} is not a whole number from 1 to {2**50}, nor 0 for no limit")
    return int(text)


COUNT: OptionType = {"parser": _parser(_parse_count), "metavar": "N"}
LIMIT: OptionType = {"parser": _parser(_parse_limit), "metavar": "N"}
DURATION: OptionType = {"parser": _parser(parse_duration), "metavar": "DURATION"}
INSTANT: OptionType = {"parser": _parser(parse_instant), "metavar": "INSTANT"}
# Read when the command line is: a command runs right after, so one clock reading serves both.
SINCE: OptionType = {"parser": _parser(lambda text: parse_since(text, datetime.now(UTC))), "metavar": "SINCE"}


def parse_labels(pairs: Iterable[str] | None) -> dict[str, str]:
    """Reads `key=value` pairs; the value may be empty and may hold further `=`."""
    labels: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE, for example team=mail", param_hint="--label")
        if key in labels:
            raise typer.BadParameter(f"{key!r} is given twice", param_hint="--label")
        labels[key] = value
    return labels
