"""Crontabs as they are on real machines, read into entries that can become schedules.

Two forms exist. A user's crontab (`crontab -l`, /var/spool/cron) has five time fields and a command; a system crontab
(/etc/crontab, /etc/cron.d/*) has the user between them. Both have environment settings, which hold for the lines below
them. What one line means is in `server.domain.crontab_line`.

Reading splits and checks the form of lines, nothing more: whether a time field or a zone makes sense is asked of the
two `validate` functions. Bad lines become problems and never stop the reading, except that a crontab without bound is
refused: the limits below keep memory and time in proportion to at most 1 MiB of text.

Differences from a cron daemon, each on the side of the reader: a last line without its line break is read (Debian's
cron refuses the file), and a carriage return at the end of a line is dropped (it would become part of the command).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import PurePosixPath
from typing import Final

from server.domain.crontab_line import BadLine, Setting, Timed, split_entry, split_input, split_setting
from server.domain.errors import InvalidInput

TEXT_LIMIT: Final = 1 << 20
LINE_LIMIT: Final = 1 << 16
ENTRIES_LIMIT: Final = 10_000
PROBLEMS_LIMIT: Final = 1000
VARIABLES_LIMIT: Final = 256

REBOOT: Final = "@reboot"
DEFAULT_SHELL: Final = "/bin/sh"

_EXCERPT_CHARS: Final = 120
_NAME_CHARS: Final = 48
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9._]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabEntry:
    """A command and when cron would run it.

    `line` counts from 1. `expression` is the five time fields, single spaces between them, or the @name as written.
    `stdin` is the input behind a `%`, None if there is none. `user` is None in the user form. `environment` holds the
    settings above the line, `CRON_TZ` and `TZ` among them; `time_zone` is the value of `CRON_TZ`, for `TZ` concerns the
    command, not its times; None means the zone of the machine. `reboot` marks `@reboot`, which no schedule can express;
    it may become a job that runs once. `name` is unique in the file and stays the same while file name and command do.
    `notes` say what will differ from cron.
    """

    line: int
    expression: str
    command: str
    stdin: str | None
    user: str | None
    environment: Mapping[str, str]
    time_zone: str | None
    reboot: bool
    name: str
    notes: tuple[str, ...] = ()

    @property
    def shell(self) -> str:
        """The program that reads the command: the setting SHELL, else /bin/sh."""
        return self.environment.get("SHELL") or DEFAULT_SHELL

    def payload(self) -> dict[str, object]:
        """What a handler needs to run the command as cron would, ready for JSON."""
        return {
            "command": self.command,
            "stdin": self.stdin,
            "environment": dict(self.environment),
            "user": self.user,
            "shell": self.shell,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabProblem:
    """A line that cannot be read: its number from 1, what is wrong and what would be right, and its beginning."""

    line: int
    reason: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}: {self.text}"


def parse_crontab(
    text: str | bytes,
    *,
    system: bool,
    source: str = "crontab",
    taken_names: Collection[str] = (),
    validate: Callable[[str], object] | None = None,
    validate_time_zone: Callable[[str], object] | None = None,
) -> list[CrontabEntry | CrontabProblem]:
    """Read a crontab; return its entries and its problems in the order of the lines.

    `system` says which form it is in, see `crontab_form.looks_like_system_crontab`. `source` is the file's path; its
    last part begins the names of the entries, which avoid `taken_names` (names of files read before). `validate` gets
    each expression and `validate_time_zone` each CRON_TZ; if they raise InvalidInput, the line is a problem with that
    reason.
    """
    reader = _Reader(
        system=system,
        names=_Names(source, taken_names),
        validate=validate or _accept,
        validate_time_zone=validate_time_zone or _accept,
    )
    return list(reader.read(text))


def _accept(_text: str) -> None:
    return None


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Goes through the lines once, carrying the environment from each to the next."""

    system: bool
    names: "_Names"
    validate: Callable[[str], object]
    validate_time_zone: Callable[[str], object]
    # Replaced, never changed, by a setting: the entries above share it.
    environment: dict[str, str] = field(default_factory=dict)
    bad_zone_line: int | None = None

    def read(self, text: str | bytes) -> Iterator[CrontabEntry | CrontabProblem]:
        if len(text) > TEXT_LIMIT:
            yield CrontabProblem(line=1, reason=f"the crontab has more than {TEXT_LIMIT} characters; split it", text="")
            return
        entries = problems = 0
        for number, line in enumerate(_lines(text), start=1):
            if line and (entries == ENTRIES_LIMIT or problems == PROBLEMS_LIMIT):
                reason = f"reading stops after {entries} entries and {problems} problems; split the crontab"
                yield CrontabProblem(line=number, reason=reason, text=_excerpt(line))
                return
            try:
                entry = self.read_line(number, line)
            except BadLine as error:
                problems += 1
                yield CrontabProblem(line=number, reason=str(error), text=_excerpt(line))
            else:
                if entry is not None:
                    entries += 1
                    yield entry

    def read_line(self, number: int, line: str) -> CrontabEntry | None:
        """Return the entry in the line, None if there is nothing to run in it. Raise BadLine."""
        content = line.lstrip(" \t")
        if not content or content.startswith("#"):
            return None
        if content.lstrip("'\"").startswith("CRON_TZ"):
            self.bad_zone_line = number  # until it is understood: entries below must not run by another zone
        if len(line) > LINE_LIMIT:
            raise BadLine(f"has more than {LINE_LIMIT} characters; put the command into a script")
        if "\0" in line:
            raise BadLine("contains a NUL character; remove it")
        if _SURROGATE.search(line):
            raise BadLine("is not UTF-8; convert the file, for example with iconv")
        setting = split_setting(line)
        if setting is not None:
            self.apply(setting)
            return None
        return self.entry(number, split_entry(line, system=self.system))

    def apply(self, setting: Setting) -> None:
        if setting.name not in self.environment and len(self.environment) >= VARIABLES_LIMIT:
            raise BadLine(f"more than {VARIABLES_LIMIT} environment variables; put them into a script")
        if setting.name == "CRON_TZ":
            if setting.value:
                _check(self.validate_time_zone, _zone(setting.value))
            self.bad_zone_line = None
        self.environment = {**self.environment, setting.name: setting.value}

    def entry(self, number: int, timed: Timed) -> CrontabEntry:
        if self.bad_zone_line is not None:
            raise BadLine(f"its time zone, CRON_TZ in line {self.bad_zone_line}, was refused")
        reboot = timed.expression == REBOOT
        if not reboot:
            _check(self.validate, timed.expression)
        command, stdin = split_input(timed.command)
        if not command.strip():
            raise BadLine("the command is empty; a % that is meant literally is written \\%")
        return CrontabEntry(
            line=number,
            expression=timed.expression,
            command=command,
            stdin=stdin,
            user=timed.user,
            environment=self.environment,
            time_zone=_zone(self.environment.get("CRON_TZ", "")) or None,
            reboot=reboot,
            name=self.names.next(timed.command),
            notes=tuple(self.notes(reboot)),
        )

    def notes(self, reboot: bool) -> Iterator[str]:
        if reboot:
            yield "@reboot, the start of the machine, is no schedule; submit a job if the command has to run once"
        if self.environment.get("RANDOM_DELAY", "0") not in ("", "0"):
            yield "RANDOM_DELAY has no effect on the times; give the schedule a jitter instead"


def _lines(text: str | bytes) -> Iterator[str]:
    """The lines without their ends. Only a line feed ends one; bytes outside UTF-8 become lone surrogates."""
    decoded = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    for line in decoded.removeprefix("\ufeff").split("\n"):
        yield line.removesuffix("\r")


def _check(validate: Callable[[str], object], text: str) -> None:
    try:
        validate(text)
    except InvalidInput as error:
        raise BadLine(f"{error.field} {error.value!r}: {error.reason}") from error


def _zone(value: str) -> str:
    """POSIX lets a colon stand before the name of a zone."""
    return value.removeprefix(":")


def _excerpt(line: str) -> str:
    """The beginning of a line, fit for a terminal and for UTF-8."""
    shown = line.strip(" \t")
    cut = shown[:_EXCERPT_CHARS] + "…" if len(shown) > _EXCERPT_CHARS else shown
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut)


class _Names:
    """Names for entries, `file:words-of-the-command`, numbered from 2 where they would collide."""

    def __init__(self, source: str, taken: Collection[str]) -> None:
        self._file = _words(PurePosixPath(source).name.removeprefix("-") or "crontab")
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def next(self, command: str) -> str:
        base = f"{self._file}:{_words(command)}"
        name = base
        for number in count(self._numbers.get(base, 1)):
            name = base if number == 1 else f"{base}-{number}"
            self._numbers[base] = number + 1
            if name not in self._taken:
                break
        self._taken.add(name)
        return name


def _words(text: str) -> str:
    """The letters, digits, dots and underscores of a text; what is cut or has none ends in a hash of all of it."""
    words = _NOT_IN_NAMES.sub("-", text.lower()).strip("-.")
    if 0 < len(words) <= _NAME_CHARS:
        return words
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{words[:_NAME_CHARS].rstrip('-.')}-{digest}".lstrip("-")
