"""Durations and instants as people write them, and as the command prints them."""

import re
from datetime import UTC, datetime, timedelta

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)"
# Each unit at most once and the larger ones first: "5m2h" or "5m5m" is more likely a slip than meant.
_DURATION = re.compile("".join(f"(?:{_NUMBER}{unit}(?![a-z]))?" for unit in _UNITS))
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_LONGEST = timedelta(days=36_500)


def parse_duration(text: str) -> timedelta:
    """Reads a duration such as `90s`, `5m`, `2h30m`, `1.5h`, `250ms`, `1d` or `2w`, of at most 36500 days.

    Raises ValueError with a text that says what would be right.
    """
    match = _DURATION.fullmatch(text)
    if match is None or text == "":
        raise ValueError(f"{text!r} is not a duration; write it as 90s, 5m, 2h30m or 1d")
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    total = timedelta()
    for number, unit in parts:
        seconds = float(number or 0) * unit.total_seconds()
        if seconds > _LONGEST.total_seconds():
            raise ValueError(f"{text!r} is too long; at most {_LONGEST.days}d")
        total += timedelta(seconds=seconds)
    if total > _LONGEST:
        raise ValueError(f"{text!r} is too long; at most {_LONGEST.days}d")
    return total


def format_duration(span: timedelta) -> str:
    """Words a duration the way `parse_duration` reads it, to the millisecond: `2h30m`, `1.5s`, `-5m`, `0s`."""
    millis = round(span / timedelta(milliseconds=1))
    sign, millis = ("-", -millis) if millis < 0 else ("", millis)
    if 0 < millis < 1000:
        return f"{sign}{millis}ms"
    seconds, millis = divmod(millis, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    fraction = f".{millis:03}".rstrip("0") if millis else ""
    parts = [f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if number]
    if seconds or fraction or not parts:
        parts.append(f"{seconds}{fraction}s")
    return sign + "".join(parts)


def parse_instant(text: str) -> datetime:
    """Reads an RFC 3339 instant such as `2026-11-01T05:30:00Z` or `2026-11-01T00:30:00-05:00`; the offset is required.

    Digits below the microsecond are cut. Raises ValueError with a text that says what would be right.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not an instant; write it with an offset, as 2026-11-01T05:30:00Z or 2026-11-01T00:30:00-05:00"
        )
    day, time, fraction, offset = match.groups()
    try:
        local = datetime.fromisoformat(f"{day}T{time}{(fraction or '')[:7]}{offset.upper()}")
        return local.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not an instant: {error}") from None


def parse_since(text: str, now: datetime) -> datetime:
    """Reads an instant, or a duration that is taken back from `now`. Raises ValueError."""
    if _INSTANT.fullmatch(text):
        return parse_instant(text)
    try:
        return now - parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, or an instant as 2026-11-01T05:30:00Z") from None


def format_instant(instant: datetime) -> str:
    """Words an instant in RFC 3339 UTC, with microseconds only where there are any."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_second(instant: datetime) -> str:
    """Words an instant for a table: in UTC, its fraction of a second cut."""
    return format_instant(instant.replace(microsecond=0))
