"""One line of a crontab taken apart, the way the usual cron daemons (Vixie cron, Debian's, cronie) do it.

Fields are parted by spaces and tabs alone. A line is an environment setting if its first word, quoted or not, is
followed by `=`; anything else that is not empty and does not start with `#` is an entry. There are no comments behind
an entry, no continued lines, and no variables in values: `PATH=$HOME/bin` means those very characters.
"""

import re
from dataclasses import dataclass
from typing import Final

_BLANKS: Final = " \t"
_BLANK: Final = re.compile(r"[ \t]+")
_SETTING: Final = re.compile(
    r"""(?:"(?P<double>[^"=]*)"|'(?P<single>[^'=]*)'|(?P<bare>[^\s="']+))[ \t]*=(?P<value>.*)"""
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# An account, with the group and the login class that FreeBSD allows behind it.
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]*\$?(:[A-Za-z0-9_.-]*)?(/[A-Za-z0-9_.-]*)?")
_ENTRY_FORM: Final = {
    False: "five time fields (or one @name) and a command",
    True: "five time fields (or one @name), a user and a command",
}


class BadLine(Exception):
    """The line is neither a setting nor an entry; the message says why and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An environment setting, `name=value`, quotes removed."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An entry: its time fields (or @name), its user in the system form, and the rest of the line."""

    expression: str
    user: str | None
    command: str


def split_setting(line: str) -> Setting | None:
    """Return the environment setting in `line`, None if it is none. Raise BadLine if it is half of one."""
    match = _SETTING.fullmatch(line.strip(_BLANKS))
    if match is None:
        return None
    name = match["double"] or match["single"] or match["bare"] or ""
    if not _VARIABLE.fullmatch(name):
        raise BadLine(f"{name!r} is no name of an environment variable; names are letters, digits and _")
    return Setting(name=name, value=_unquote(match["value"].strip(_BLANKS)))


def _unquote(value: str) -> str:
    quote = value[:1]
    if quote not in ("'", '"'):
        return value
    inner, closing, rest = value[1:].partition(quote)
    if not closing:
        raise BadLine(f"the quote {quote} is not closed; close it, or drop it")
    if rest:
        raise BadLine(
            "text follows the closing quote; put all of the value inside the quotes, comments on their own line"
        )
    return inner


def split_entry(line: str, *, system: bool) -> Timed:
    """Return the entry in `line`, of the system form (with a user) or of the user form. Raise BadLine if it is none."""
    line = line.lstrip(_BLANKS)
    if system and line.startswith("-") and line[1:2].strip():
        line = line[1:]  # SUSE and cronie: "do not log this one"
    count = 1 if line.startswith("@") else 5
    fields = _BLANK.split(line, maxsplit=count)
    if len(fields) <= count or not fields[count]:
        found = sum(1 for field in fields if field)
        odd = next((char for char in line if char.isspace() and char not in _BLANKS), None)
        hint = f"; U+{ord(odd):04X} parts no fields, replace it by a space" if odd else ""
        raise BadLine(f"expected {_ENTRY_FORM[system]}, found {found} field{'s' * (found != 1)}{hint}")
    expression, rest, user = " ".join(fields[:count]), fields[count], None
    if rest.startswith("*"):
        raise BadLine("a sixth time field; an entry has five of them, seconds are not possible")
    if system:
        user, rest = _split_user(rest)
    return Timed(expression=expression, user=user, command=rest)


def _split_user(rest: str) -> tuple[str, str]:
    user, *command = _BLANK.split(rest, maxsplit=1)
    if not _USER.fullmatch(user):
        raise BadLine(f"{user!r} is no user name; is this the user form, which has no column for the user?")
    if not command or not command[0]:
        raise BadLine("no command behind the user; is this the user form, which has no column for the user?")
    return user, command[0]


def split_input(command: str) -> tuple[str, str | None]:
    r"""Split a command at its first `%` into the command and its standard input, None if there is no `%`.

    `\%` stands for the character itself. In the input a further `%` is a line break, and the last line gets its line
    break if it lacks one. The two parts treat `\\%` differently, as the daemons do: in the command the second
    backslash is escaped by the first, and the `%` splits; in the input it is still `\%`.
    """
    shell: list[str] = []
    escaped = False
    for at, char in enumerate(command):
        if char == "%" and not escaped:
            return "".join(shell), _as_input(command[at + 1 :])
        if char == "%":
            shell.pop()
        shell.append(char)
        escaped = char == "\\" and not escaped
    return "".join(shell), None


def _as_input(text: str) -> str:
    lines = re.sub(r"\\?%", lambda match: "%" if len(match[0]) == 2 else "\n", text)
    return lines if not lines or lines.endswith("\n") else lines + "\n"
