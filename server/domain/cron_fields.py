"""What an expanded cron expression matches: sets of values per field, and tables for a fast search over civil time."""

import calendar
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from functools import lru_cache

LAST_WEEKDAY = -1
"""The ordinal of "the last such weekday of the month" (`5L`) in `CronFields.nth_weekdays`."""

MAX_YEAR = 9998
"""Searches end here: one year below the calendar's end, so that no time zone offset can overflow it."""

NO_VALUE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CronFields:
    """The values of each field, sorted, as croniter expanded them. Weekdays count from Sunday = 0.

    The `*_star` flags say that the field was written with a `*` (alone or with a step). For minute and hour it
    means that the expression follows real time through a fold; for a day field, that it does not count as restricted.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    month_days: tuple[int, ...]
    last_month_day: bool
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    nth_weekdays: tuple[tuple[int, int], ...]
    minute_star: bool
    hour_star: bool
    month_day_star: bool
    weekday_star: bool

    @property
    def either_day(self) -> bool:
        """Whether both day fields are restricted, so that a day matches if either does (the rule of POSIX)."""
        return not self.month_day_star and not self.weekday_star

    @property
    def every_month_day(self) -> bool:
        return len(self.month_days) == 31

    @property
    def every_weekday(self) -> bool:
        return len(self.weekdays) == 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CronTable:
    """`CronFields` prepared for searching.

    `next_*[i]` is the smallest value ≥ i, or NO_VALUE; `seconds_below[i]` and its like count the values < i.
    `day_masks` has one bit mask of matching days for each shape of a month (see `month_shape`).
    """

    next_second: tuple[int, ...]
    next_minute: tuple[int, ...]
    next_hour: tuple[int, ...]
    next_month: tuple[int, ...]
    seconds_below: tuple[int, ...]
    minutes_below: tuple[int, ...]
    hours_below: tuple[int, ...]
    day_masks: tuple[int, ...]
    every_day: bool
    every_hour: bool
    follows_real_time: bool

    def month_mask(self, year: int, month: int) -> int:
        """Return the matching days of a month as bits 1 to 31."""
        if self.next_month[month] != month:
            return 0
        return self.day_masks[month_shape(year, month)]

    def possible(self) -> bool:
        """Say whether any date can match. Exact: every shape of every month occurs within 400 years."""
        return any(
            self.day_masks[(length - 28) * 7 + first]
            for month in range(1, 13)
            if self.next_month[month] == month
            for length in ((28, 29) if month == 2 else (_LENGTHS[month],))
            for first in range(7)
        )

    def first_at_or_after(self, start: datetime) -> datetime | None:
        """Return the earliest matching civil time ≥ `start`, which has whole seconds and no meaning of its offset.

        The tzinfo of `start` is kept, its fold dropped. None if nothing matches up to the end of MAX_YEAR.
        """
        year, month, day, zone = start.year, start.month, start.day, start.tzinfo
        if self.every_day or self.month_mask(year, month) >> day & 1:
            hour, minute = start.hour, start.minute
            found = self.next_hour[hour]
            if found == hour:
                if self.next_minute[minute] == minute:
                    second = self.next_second[start.second]
                    if second != NO_VALUE:
                        return datetime(year, month, day, hour, minute, second, tzinfo=zone)
                    minute += 1
                minute = self.next_minute[minute]
                if minute != NO_VALUE:
                    return datetime(year, month, day, hour, minute, self.next_second[0], tzinfo=zone)
                found = self.next_hour[hour + 1]
            if found != NO_VALUE:
                return datetime(year, month, day, found, self.next_minute[0], self.next_second[0], tzinfo=zone)
        return self._first_of_a_day_from(year, month, day + 1, zone)

    def _first_of_a_day_from(self, year: int, month: int, day: int, zone: tzinfo | None) -> datetime | None:
        """Find the next matching day ≥ `day`, which may be one past the end of its month.

        At most 40 years are searched in vain, for the longest wait is that for a 29 February on a given weekday.
        """
        while year <= MAX_YEAR:
            found = self.next_month[month]
            if found == NO_VALUE:
                year, month, day = year + 1, 1, 1
                continue
            if found != month:
                month, day = found, 1
            mask = self.day_masks[month_shape(year, month)] >> day
            if mask:
                day += (mask & -mask).bit_length() - 1
                first = self.next_hour[0], self.next_minute[0], self.next_second[0]
                return datetime(year, month, day, *first, tzinfo=zone)
            month, day = month + 1, 1
        return None

    def count_civil(self, start: datetime, end: datetime) -> int:
        """Count the matching civil times in [start, end). Whole seconds; work grows with the months between."""
        if end <= start:
            return 0
        times_per_day = self.seconds_below[60] * self.minutes_below[60] * self.hours_below[24]
        days = self._count_days(start.date(), end.date())
        return days * times_per_day - self._count_before_on_day(start) + self._count_before_on_day(end)

    def _count_days(self, start: date, end: date) -> int:
        """Count the matching days in [start, end)."""
        total = 0
        year, month = start.year, start.month
        while (year, month) <= (end.year, end.month):
            mask = self.month_mask(year, month)
            if (year, month) == (end.year, end.month):
                mask &= (1 << end.day) - 1
            if (year, month) == (start.year, start.month):
                mask >>= start.day
            total += mask.bit_count()
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return total

    def _count_before_on_day(self, moment: datetime) -> int:
        """Count the matching times of the day of `moment` that lie before it."""
        if not self.month_mask(moment.year, moment.month) >> moment.day & 1:
            return 0
        per_minute = self.seconds_below[60]
        count = self.hours_below[moment.hour] * self.minutes_below[60] * per_minute
        if self.next_hour[moment.hour] == moment.hour:
            count += self.minutes_below[moment.minute] * per_minute
            if self.next_minute[moment.minute] == moment.minute:
                count += self.seconds_below[moment.second]
        return count


def compile_table(fields: CronFields) -> CronTable:
    """Prepare `fields` for searching."""
    day_masks = _day_masks(
        fields.month_days, fields.last_month_day, fields.weekdays, fields.nth_weekdays, fields.either_day
    )
    return CronTable(
        next_second=_successors(fields.seconds, 60),
        next_minute=_successors(fields.minutes, 60),
        next_hour=_successors(fields.hours, 24),
        next_month=_successors(fields.months, 13),
        seconds_below=_counts_below(fields.seconds, 60),
        minutes_below=_counts_below(fields.minutes, 60),
        hours_below=_counts_below(fields.hours, 24),
        day_masks=day_masks,
        every_day=len(fields.months) == 12 and all(mask == _full(i // 7 + 28) for i, mask in enumerate(day_masks)),
        every_hour=len(fields.hours) == 24,
        follows_real_time=fields.minute_star or fields.hour_star,
    )


_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@lru_cache(maxsize=4096)
def month_shape(year: int, month: int) -> int:
    """Return the index of a month's shape: its length (28 to 31) and the weekday of its first day (Sunday = 0)."""
    length = 29 if month == 2 and calendar.isleap(year) else _LENGTHS[month]
    return (length - 28) * 7 + date(year, month, 1).isoweekday() % 7


@lru_cache(maxsize=4096)
def _successors(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return for each i in 0..size the smallest value ≥ i."""
    table = [NO_VALUE] * (size + 1)
    for i in range(size - 1, -1, -1):
        table[i] = i if i in values else table[i + 1]
    return tuple(table)


@lru_cache(maxsize=4096)
def _counts_below(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(sum(value < i for value in values) for i in range(size + 1))


@lru_cache(maxsize=1024)
def _day_masks(
    month_days: tuple[int, ...],
    last_month_day: bool,
    weekdays: tuple[int, ...],
    nth_weekdays: tuple[tuple[int, int], ...],
    either_day: bool,
) -> tuple[int, ...]:
    masks = []
    for length in range(28, 32):
        by_date = _mask(day for day in month_days if day <= length)
        if last_month_day:
            by_date |= 1 << length
        for first in range(7):
            by_weekday = _weekday_mask(weekdays, nth_weekdays, length, first)
            masks.append(by_date | by_weekday if either_day else by_date & by_weekday)
    return tuple(masks)


def _weekday_mask(weekdays: tuple[int, ...], nth_weekdays: tuple[tuple[int, int], ...], length: int, first: int) -> int:
    """Return the days of a month with `length` days, the first on weekday `first`, that the weekday field names."""
    mask = _mask(day for weekday in weekdays for day in range(1 + (weekday - first) % 7, length + 1, 7))
    for weekday, nth in nth_weekdays:
        days = range(1 + (weekday - first) % 7, length + 1, 7)
        if nth == LAST_WEEKDAY:
            mask |= 1 << days[-1]
        elif nth <= len(days):
            mask |= 1 << days[nth - 1]
    return mask


def _full(length: int) -> int:
    """Return the mask of all days of a month."""
    return (1 << (length + 1)) - 2


def _mask(bits: Iterable[int]) -> int:
    mask = 0
    for bit in bits:
        mask |= 1 << bit
    return mask
