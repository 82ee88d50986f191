"""The canonical text of a cron expression, its meaning in words, and remarks on what may surprise."""

from functools import lru_cache

from cron_descriptor import ExpressionDescriptor, FormatError, Options

from server.domain.cron_fields import LAST_WEEKDAY, CronFields

_MIN_PROGRESSION = 5


def canonical_text(fields: CronFields) -> str:
    """Return the one text for all expressions with this meaning, itself a valid expression.

    Five fields if the second is 0, else six; numbers only; lists sorted. It holds no `H` and does not depend on how
    croniter reads a step or a range, so a stored schedule keeps its meaning over upgrades.
    """
    if fields.either_day and (fields.every_month_day or fields.every_weekday):
        month_day, weekday = "*", "*"
    else:
        month_day, weekday = _month_day_text(fields), _weekday_text(fields)
    texts = [
        _field_text(fields.seconds, 0, 59, star=False),
        _field_text(fields.minutes, 0, 59, star=fields.minute_star),
        _field_text(fields.hours, 0, 23, star=fields.hour_star),
        month_day,
        _field_text(fields.months, 1, 12, star=False),
        weekday,
    ]
    return " ".join(texts[1:] if texts[0] == "0" else texts)


@lru_cache(maxsize=1024)
def describe(canonical: str) -> str:
    """Return the meaning of a canonical expression in English words, 24-hour clock."""
    options = Options(use_24hour_time_format=True, locale_code="en_US")
    try:
        return ExpressionDescriptor(canonical, options).get_description()
    except FormatError:
        return canonical


def remarks(fields: CronFields, texts: list[str]) -> tuple[str, ...]:
    """Return what a user should know about an expression: rules that decide its days, uneven and lost steps.

    `texts` are its six fields as they were written, seconds first.
    """
    notes = [*_day_remarks(fields, texts), *_step_remarks(texts)]
    if any("H" in text.replace("THU", "") for text in texts):
        notes.append("H stands for a stable value that is hashed from the name of the schedule")
    return tuple(notes)


def _field_text(values: tuple[int, ...], low: int, high: int, *, star: bool) -> str:
    if len(values) == high - low + 1:
        return "*"
    if star:
        return _star_text(values, low, high)
    return _list_text(values)


def _star_text(values: tuple[int, ...], low: int, high: int) -> str:
    """Return the text of a field that was written with a step over `*`, and therefore contains its lowest value."""
    for step in range(2, high - low + 2):
        if values == tuple(range(low, high + 1, step)):
            return f"*/{step}"
    return f"*/{high - low + 1},{_list_text(values[1:])}"


def _list_text(values: tuple[int, ...]) -> str:
    step = values[1] - values[0] if len(values) >= _MIN_PROGRESSION else 0
    if step > 1 and values == tuple(range(values[0], values[-1] + 1, step)):
        return f"{values[0]}-{values[-1]}/{step}"
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _month_day_text(fields: CronFields) -> str:
    if fields.every_month_day:
        return "*"
    texts = [_field_text(fields.month_days, 1, 31, star=fields.month_day_star)] if fields.month_days else []
    if fields.last_month_day:
        texts.append("L")
    return ",".join(texts)


def _weekday_text(fields: CronFields) -> str:
    if not fields.nth_weekdays:
        return _field_text(fields.weekdays, 0, 6, star=fields.weekday_star)
    return ",".join(f"{day}L" if nth == LAST_WEEKDAY else f"{day}#{nth}" for day, nth in fields.nth_weekdays)


def _day_remarks(fields: CronFields, texts: list[str]) -> list[str]:
    month_day, weekday = texts[3], texts[5]
    both = f"day-of-month ({month_day}) and day-of-week ({weekday})"
    notes = []
    if fields.either_day:
        rule = f"{both} are both restricted: a day matches if either does (POSIX)"
        if fields.every_month_day or fields.every_weekday:
            rule += ", which is every day"
        notes.append(rule)
    elif not fields.every_month_day and not fields.every_weekday:
        notes.append(f"{both}: a day must match both, for one of the fields contains *")
    if not fields.either_day and not fields.last_month_day and fields.month_days[0] > 28:
        notes.append(f"months without a day {fields.month_days[0]} are skipped; L is the last day of every month")
    return notes


def _step_remarks(texts: list[str]) -> list[str]:
    notes = []
    for name, size, whole, text in zip(
        ("second", "minute", "hour"), (60, 60, 24), ("minute", "hour", "day"), texts, strict=False
    ):
        if not text.startswith("*/") or "," in text:
            continue
        step = int(text[2:])
        if step > size - 1:
            notes.append(f"{name} step {step} is longer than the field: only {name} 0 matches")
        elif size % step:
            notes.append(f"{name} step {step} starts anew with each {whole}, so the last distance is shorter")
    return notes
