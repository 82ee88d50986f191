"""A second opinion on cron: slow, obvious, and sharing nothing with the product but the zones.

It reads an expression with a parser of its own and walks UTC tick by tick, looking at what a clock in the zone shows.
The rules for gaps and folds are written out in `brute_force`.
"""

import calendar
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True)
class Oracle:
    """The meaning of an expression of six fields (numbers, `*`, `-`, `/`, `,`, `L` and `#`), seconds first."""

    seconds: set[int]
    minutes: set[int]
    hours: set[int]
    days: str
    months: set[int]
    weekdays: str
    follows_real_time: bool

    def matches(self, civil: datetime) -> bool:
        if civil.second not in self.seconds or civil.minute not in self.minutes or civil.hour not in self.hours:
            return False
        if civil.month not in self.months:
            return False
        by_date = any(_date_item(item, civil) for item in self.days.split(","))
        by_weekday = any(_weekday_item(item, civil) for item in self.weekdays.split(","))
        if "*" in self.days or "*" in self.weekdays:
            return by_date and by_weekday
        return by_date or by_weekday


def oracle(expression: str) -> Oracle:
    fields = expression.split()
    if len(fields) == 5:
        fields = ["0", *fields]
    second, minute, hour, day, month, weekday = fields
    return Oracle(
        seconds=_numbers(second, 0, 59),
        minutes=_numbers(minute, 0, 59),
        hours=_numbers(hour, 0, 23),
        days=day,
        months=_numbers(month, 1, 12),
        weekdays=weekday,
        follows_real_time="*" in minute or "*" in hour,
    )


def brute_force(
    expression: str,
    zone: ZoneInfo,
    start: datetime,
    end: datetime,
    *,
    tick: int,
    run_after_gap: bool = True,
    both_passes: bool = False,
) -> list[datetime]:
    """Return the firings in (start, end], looking every `tick` seconds, from `start` less a lead of three hours on."""
    meaning = oracle(expression)
    step = timedelta(seconds=tick)
    lead = int(start.timestamp()) - 3 * 3600
    found = []
    latest_civil = before = _civil(lead, zone)
    for instant in range(lead + tick, int(end.timestamp()) + 1, tick):
        civil = _civil(instant, zone)
        fires = False
        left_out = civil - before - step
        if left_out > timedelta() and run_after_gap and len(meaning.hours) < 24:
            missing = (before + step * n for n in range(1, left_out // step + 1))
            fires = any(meaning.matches(moment) for moment in missing)
        second_pass = civil <= latest_civil
        if meaning.matches(civil) and (not second_pass or meaning.follows_real_time or both_passes):
            fires = True
        if fires and instant > start.timestamp():
            found.append(datetime.fromtimestamp(instant, UTC))
        latest_civil, before = max(latest_civil, civil), civil
    return found


def offset_changes(zone: ZoneInfo, year: int) -> Iterator[datetime]:
    """Yield the instants of a year, to the minute, at which a clock in the zone jumps."""
    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    for hour in range(start, start + 366 * 86400, 3600):
        if _offset(hour, zone) != _offset(hour + 3600, zone):
            minute = next(m for m in range(hour + 60, hour + 3601, 60) if _offset(m, zone) != _offset(hour, zone))
            yield datetime.fromtimestamp(minute, UTC)


def _civil(instant: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)


def _offset(instant: int, zone: ZoneInfo) -> timedelta:
    return _civil(instant, zone) - datetime.fromtimestamp(instant, UTC).replace(tzinfo=None)


def _numbers(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, dash, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        end = int(last) if dash else high if step else int(first)
        found |= set(range(int(first), end + 1, int(step or 1)))
    return found


def _date_item(item: str, civil: datetime) -> bool:
    if item == "L":
        return civil.day == calendar.monthrange(civil.year, civil.month)[1]
    return civil.day in _numbers(item, 1, 31)


def _weekday_item(item: str, civil: datetime) -> bool:
    weekday = civil.isoweekday() % 7
    if "#" in item:
        wanted, nth = item.split("#")
        return weekday == int(wanted) % 7 and (civil.day - 1) // 7 + 1 == int(nth)
    if item.endswith("L"):
        length = calendar.monthrange(civil.year, civil.month)[1]
        return weekday == int(item[:-1]) % 7 and civil.day + 7 > length
    return weekday in {number % 7 for number in _numbers(item, 0, 6 if "-" not in item else 7)}
