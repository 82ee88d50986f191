"""From the text of a cron expression to its fields.

croniter parses and expands each field. Before that, the grammar here refuses what croniter would read in a way that
nobody means, or that changes between its releases, and rewrites what it reads as a surprise:

- text that is too long, not ASCII, or has the wrong number of fields; random values (`R`), years, `?`, `W`, `@every`;
- `5-5`, which croniter takes for the whole field; here it is 5;
- `H`, which is resolved here, with an independent hash for each field, into plain values.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from croniter import CroniterError, croniter

from server.domain.cron_fields import LAST_WEEKDAY, CronFields
from server.domain.errors import InvalidInput

MAX_EXPRESSION_CHARS = 256
"""Longer texts are refused unread, which bounds all work on an expression."""

ERROR_FIELD = "cron"
"""The `field` of the InvalidInput that refuses an expression."""

_NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@YEARLY": "0 0 1 1 *",
        "@ANNUALLY": "0 0 1 1 *",
        "@MONTHLY": "0 0 1 * *",
        "@WEEKLY": "0 0 * * 0",
        "@DAILY": "0 0 * * *",
        "@MIDNIGHT": "0 0 * * *",
        "@HOURLY": "0 * * * *",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One field of the syntax: the values it takes, both ends included, and the names that stand for some of them."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int

    def value(self, text: str) -> int:
        """Return the number that `text`, a number or a name, stands for. Raise ValueError with a reason if none."""
        if text.isdigit():
            number = int(text)
            if not self.low <= number <= self.high:
                raise ValueError(f"{text} is outside {self.low}-{self.high}")
            return number
        if text in self.names:
            return self.low + self.names.index(text)
        allowed = f"a number or one of {' '.join(self.names)}" if self.names else "a number"
        raise ValueError(f"{text!r} is not {allowed}")


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

SECOND = FieldSpec(name="second", low=0, high=59, hash_high=59)
MINUTE = FieldSpec(name="minute", low=0, high=59, hash_high=59)
HOUR = FieldSpec(name="hour", low=0, high=23, hash_high=23)
# A hashed day is one that every month has.
MONTH_DAY = FieldSpec(name="day-of-month", low=1, high=31, hash_high=28)
MONTH = FieldSpec(name="month", low=1, high=12, names=_MONTHS, hash_high=12)
# Both 0 and 7 are Sunday.
WEEKDAY = FieldSpec(name="day-of-week", low=0, high=7, names=_WEEKDAYS, hash_high=6)

FIELD_SPECS = (SECOND, MINUTE, HOUR, MONTH_DAY, MONTH, WEEKDAY)

_STAR = re.compile(r"\*(?:/(\d{1,3}))?")
_RANGE = re.compile(r"(\d{1,3}|[A-Z]{3})(?:-(\d{1,3}|[A-Z]{3}))?(?:/(\d{1,3}))?")
_HASHED = re.compile(r"H(?:\((\d{1,3})-(\d{1,3})\))?(?:/(\d{1,3}))?")
_NTH_WEEKDAY = re.compile(r"(\d|[A-Z]{3})#(\d)")
_LAST_WEEKDAY = re.compile(r"(\d|[A-Z]{3})L|L(\d|[A-Z]{3})")


def split_fields(text: str) -> list[str]:
    """Return the six fields of an expression, seconds first, in upper case, nicknames replaced. Raise InvalidInput."""
    if len(text) > MAX_EXPRESSION_CHARS:
        raise refusal(text, f"has {len(text)} characters, at most {MAX_EXPRESSION_CHARS} are allowed")
    if not text.isascii():
        raise refusal(text, "may contain ASCII characters only")
    if any(character != "\t" and not character.isprintable() for character in text):
        raise refusal(text, "may not contain control characters or line breaks")
    upper = text.strip().upper()
    if upper.startswith("@"):
        if upper not in _NICKNAMES:
            raise refusal(text, _nickname_reason(upper))
        upper = _NICKNAMES[upper]
    fields = upper.split()
    match len(fields):
        case 5:
            return ["0", *fields]
        case 6:
            return fields
        case count:
            raise refusal(text, f"has {count} fields; write five, or six with the seconds first")


def expand(text: str, fields: list[str], hash_key: str) -> CronFields:
    """Expand the six fields of the expression `text`. Raise InvalidInput naming the cron field and the reason."""
    plain = []
    for spec, field in zip(FIELD_SPECS, fields, strict=True):
        try:
            plain.append(_normalise(spec, field, hash_key))
        except ValueError as error:
            raise refusal(text, f"{spec.name}: {error}") from None
    try:
        expanded, nth = croniter.expand(" ".join(plain), second_at_beginning=True)
    except CroniterError as error:
        raise refusal(text, str(error)) from error
    minutes, hours, month_days, months, weekdays, seconds = expanded
    return CronFields(
        seconds=_values(SECOND, seconds),
        minutes=_values(MINUTE, minutes),
        hours=_values(HOUR, hours),
        month_days=_values(MONTH_DAY, month_days),
        last_month_day="l" in month_days,
        months=_values(MONTH, months),
        weekdays=() if nth else _values(WEEKDAY, weekdays),
        nth_weekdays=tuple(sorted((day, LAST_WEEKDAY if n == "l" else int(n)) for day, ns in nth.items() for n in ns)),
        minute_star="*" in plain[1] or len(_values(MINUTE, minutes)) == 60,
        hour_star="*" in plain[2] or len(_values(HOUR, hours)) == 24,
        month_day_star="*" in plain[3],
        weekday_star="*" in plain[5],
    )


def refusal(text: str, reason: str) -> InvalidInput:
    """Return the error that refuses the expression `text`."""
    return InvalidInput(ERROR_FIELD, text, reason)


def _nickname_reason(nickname: str) -> str:
    if nickname.startswith("@EVERY"):
        return "is not cron; for a fixed distance use an interval schedule"
    if nickname == "@REBOOT":
        return "names no time; a schedule cannot fire at a reboot"
    return f"is no known nickname; known are {' '.join(_NICKNAMES).lower()}"


def _values(spec: FieldSpec, expanded: Sequence[object]) -> tuple[int, ...]:
    """Return the sorted numbers of a field that croniter expanded; `*` stands for all of them."""
    if "*" in expanded:
        return tuple(range(spec.low, (6 if spec is WEEKDAY else spec.high) + 1))
    return tuple(sorted(value for value in expanded if isinstance(value, int)))


def _normalise(spec: FieldSpec, field: str, hash_key: str) -> str:
    """Return the field in plain numbers, `*`, `-`, `/`, `#` and `L`, as croniter reads it the way it is meant."""
    items = [_normalise_item(spec, item, hash_key) for item in field.split(",")]
    special = ["#" in item or "L" in item for item in items]
    if spec is WEEKDAY and any(special) and not all(special):
        raise ValueError("nth and last weekdays cannot be mixed with plain ones in one field")
    return ",".join(items)


def _normalise_item(spec: FieldSpec, item: str, hash_key: str) -> str:
    if item == "":
        raise ValueError("an item of the list is empty")
    if item == "L" and spec is MONTH_DAY:
        return item
    if match := _STAR.fullmatch(item):
        return item if match[1] is None else f"*/{_step(match[1])}"
    if match := _HASHED.fullmatch(item):
        return _resolve_hash(spec, match, hash_key)
    if spec is WEEKDAY and (match := _NTH_WEEKDAY.fullmatch(item)):
        if not 1 <= int(match[2]) <= 5:
            raise ValueError(f"#{match[2]} is outside #1-#5")
        return f"{spec.value(match[1]) % 7}#{match[2]}"
    if spec is WEEKDAY and (match := _LAST_WEEKDAY.fullmatch(item)):
        return f"L{spec.value(match[1] or match[2]) % 7}"
    if match := _RANGE.fullmatch(item):
        return _normalise_range(spec, match[1], match[2], match[3])
    raise ValueError(_syntax_reason(spec, item))


def _normalise_range(spec: FieldSpec, first: str, last: str | None, step_text: str | None) -> str:
    low = spec.value(first)
    step = _step(step_text) if step_text else 1
    if last is None:
        if step_text is None:
            return str(low)
        high = 6 if spec is WEEKDAY else spec.high
    else:
        high = spec.value(last)
        if spec is WEEKDAY:
            low, high = _sunday_at_the_right_end(low, high)
    if low > high and last is not None:
        if step > 1:
            raise ValueError(f"the range {first}-{last} runs backwards, which cannot have a step; write two ranges")
        return f"{low}-{high}"
    return str(low) if low + step > high else f"{low}-{high}/{step}"


def _sunday_at_the_right_end(low: int, high: int) -> tuple[int, int]:
    """Let Sunday be 0 at the start of a range and 7 at its end, so that `FRI-SUN` and `7-2` do not run backwards."""
    if low == 7 and high < 7:
        low = 0
    if high == 0 and low > 0:
        high = 7
    return low, high


def _step(text: str) -> int:
    step = int(text)
    if step == 0:
        raise ValueError("a step must be at least 1")
    return step


def _resolve_hash(spec: FieldSpec, match: re.Match[str], hash_key: str) -> str:
    """Replace `H`, `H(a-b)`, `H/n` or `H(a-b)/n` by the value, or the steps, that belong to `hash_key`."""
    if not hash_key:
        raise ValueError("H needs the name of a schedule to hash; write a number here")
    low, high = (spec.value(match[1]), spec.value(match[2])) if match[1] else (spec.low, spec.hash_high)
    if low > high:
        raise ValueError(f"the range of {match[0]} runs backwards")
    digest = hashlib.sha256(f"{spec.name}\0{hash_key}".encode(errors="surrogatepass")).digest()
    number = int.from_bytes(digest[:8], "big")
    if match[3] is None:
        return str(low + number % (high - low + 1))
    step = _step(match[3])
    offset = low + number % min(step, high - low + 1)
    return str(offset) if offset + step > high else f"{offset}-{high}/{step}"


def _syntax_reason(spec: FieldSpec, item: str) -> str:
    if item == "?":
        return "? is Quartz syntax; write *, and mind that weekdays here run from 0 (Sunday) to 6, not from 1 to 7"
    if spec is MONTH_DAY and ("W" in item or item.startswith("L-")):
        return f"{item!r} is not supported; L (the last day) is"
    if spec is WEEKDAY and item == "L":
        return "L needs a weekday here: 5L is the last Friday of the month"
    if item.startswith("-"):
        return f"{item!r} is a negative number"
    return f"cannot read {item!r}"
