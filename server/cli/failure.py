"""How a command ends when it cannot do what it was asked: one line for people, and an exit code."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

import typer

from server.config import PREFIX, NodeConfig
from server.domain.errors import InvalidInput
from server.observe.logging import masked

FAILED: Final = 1
REFUSED: Final = 2
_SETTINGS: Final = frozenset(field.name for field in fields(NodeConfig))
_SECRET: Final = frozenset({"database", "zookeeper_auth"})
_SPACE: Final = re.compile(r"[\x00-\x20\x7f-\x9f]+")


class CommandFailed(Exception):
    """Ends the command with `exit_code`; the text says what went wrong and what to do about it."""

    exit_code = FAILED


class InputRefused(CommandFailed):
    """What the user gave cannot be accepted."""

    exit_code = REFUSED


@contextmanager
def told_to_people() -> Iterator[None]:
    """Turn failures inside into one line on stderr and an exit code."""
    try:
        yield
    except CommandFailed as failure:
        _end(str(failure), failure.exit_code)
    except InvalidInput as error:
        _end(refusal(error), REFUSED)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def setting(name: str) -> str:
    """Return how people can give the setting: its flag, and its variable if it is one of a node."""
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} ({PREFIX}{name.upper()})" if name in _SETTINGS else flag


def refusal(error: InvalidInput) -> str:
    """Return the text for a setting that cannot be accepted. Values that may hold passwords are not shown."""
    name = error.field.removeprefix(PREFIX).lower()
    where = error.field if error.field.startswith(PREFIX) else setting(name)
    return f"{where}: {error.reason}" + ("" if name in _SECRET else f" (got {error.value!r})")


def one_line(error: object, *, secret: str = "") -> str:
    """Return an error's text on one line, without passwords and without `secret`."""
    text = str(error)
    return _SPACE.sub(" ", masked(text.replace(secret, "***") if secret else text)).strip()


def _end(text: str, exit_code: int) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)
    raise typer.Exit(exit_code) from None
