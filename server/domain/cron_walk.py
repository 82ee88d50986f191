"""From cron expressions to instants: a walk over civil time that knows what zones do to it.

An expression fires at an instant if the civil time that a clock in the zone shows then matches it. Changes of the
zone's offset make two exceptions, each with a policy:

- **Gap** (clocks go forward): matching civil times that no clock shows. RUN_AFTER makes up for all of them with one
  firing at the first instant after the gap; SKIP does not. An expression whose hour field is every hour (`15 * * * *`)
  goes on in real time, so nothing is made up for it.
- **Fold** (clocks go back): matching civil times that clocks show twice. An expression with a `*` in its minute or hour
  field, alone or with a step, follows real time and fires in both passes; any other has fixed times, which fire in
  the first pass only (FIRST) or in both (BOTH).

Results are in UTC, whole seconds, strictly later than the argument, and in ascending order whatever the zone does. The
rules for fixed and wildcard times are those that Debian's cron documents; the walk itself needs only the offset of
the zone at a civil time, so it holds for any zone and for changes of any size, up to a left-out or repeated day.
Assumed: a zone changes its offset at most once within any span as short as the change itself.
"""

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from zoneinfo import ZoneInfo

from server.domain.cron import CronExpression
from server.domain.cron_fields import MAX_YEAR, CronTable

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)


class GapPolicy(IntEnum):
    """What happens with civil times that a forward change leaves out. The numbers are stored."""

    RUN_AFTER = 1
    SKIP = 2


class FoldPolicy(IntEnum):
    """What happens with fixed civil times that a backward change repeats. The numbers are stored."""

    FIRST = 1
    BOTH = 2


def next_after(
    expression: CronExpression,
    zone: ZoneInfo,
    after: datetime,
    *,
    gap: GapPolicy = GapPolicy.RUN_AFTER,
    fold: FoldPolicy = FoldPolicy.FIRST,
) -> datetime | None:
    """Return the first firing strictly later than `after`, in UTC; None if there is none before the year 9999."""
    require_aware(after)
    if after.year > MAX_YEAR:
        return None
    table = expression.table
    local = max(after, _EARLIEST).astimezone(zone).replace(microsecond=0)
    before, behind = _offsets(local)
    if before > behind:
        return _next_in_fold(table, zone, local, gap, fold)
    return _settle(table, zone, table.first_at_or_after(local + _SECOND), gap)


def firings(
    expression: CronExpression,
    zone: ZoneInfo,
    after: datetime,
    count: int,
    *,
    gap: GapPolicy = GapPolicy.RUN_AFTER,
    fold: FoldPolicy = FoldPolicy.FIRST,
) -> list[datetime]:
    """Return up to `count` firings strictly later than `after`, in UTC, ascending."""
    found: list[datetime] = []
    while len(found) < count:
        instant = next_after(expression, zone, after, gap=gap, fold=fold)
        if instant is None:
            break
        found.append(instant)
        after = instant
    return found


def previous_before(
    expression: CronExpression,
    zone: ZoneInfo,
    before: datetime,
    *,
    gap: GapPolicy = GapPolicy.RUN_AFTER,
    fold: FoldPolicy = FoldPolicy.FIRST,
) -> datetime | None:
    """Return the last firing strictly earlier than `before`, in UTC; None if there is none after the year 1.

    Searched with `next_after`, by doubling the distance and then halving it: about 2 log2(distance in s) steps, and
    forward and backward walks cannot disagree.
    """
    require_aware(before)
    high, distance = before, _SECOND
    while True:
        if before - _EARLIEST < distance:
            return None
        low = before - distance
        found = next_after(expression, zone, low, gap=gap, fold=fold)
        if found is not None and found < before:
            break
        high, distance = low, distance * 2
    while high - found > _SECOND:
        middle = found + (high - found) / 2
        later = next_after(expression, zone, middle, gap=gap, fold=fold)
        if later is not None and later < before:
            found = later
        else:
            high = middle
    later = next_after(expression, zone, found, gap=gap, fold=fold)
    return found if later is None or later >= before else later


def count_firings(
    expression: CronExpression,
    zone: ZoneInfo,
    after: datetime,
    until: datetime,
    *,
    gap: GapPolicy = GapPolicy.RUN_AFTER,
    fold: FoldPolicy = FoldPolicy.FIRST,
) -> int:
    """Count the firings in (after, until] by arithmetic: work grows with the days between, not with the firings."""
    require_aware(after)
    require_aware(until)
    table = expression.table
    both_passes = table.follows_real_time or fold is FoldPolicy.BOTH
    start = max(after, _EARLIEST).astimezone(UTC).replace(microsecond=0) + _SECOND
    end = until.astimezone(UTC).replace(microsecond=0) + _SECOND
    total = 0
    while start < end:
        change = _first_change(zone, start, end)
        local, local_end = _wall(start, zone, start), _wall(start, zone, change)
        if not both_passes:
            local = _past_second_pass(zone, start, local)
        total += table.count_civil(local, local_end)
        if change < end and gap is GapPolicy.RUN_AFTER and not table.every_hour:
            total += _made_up(table, local_end, _wall(change, zone, change))
        start = change
    return total


def require_aware(moment: datetime) -> None:
    """Refuse a datetime without a time zone, which Python would read as this machine's local time."""
    if moment.tzinfo is None:
        raise ValueError(f"an instant needs a time zone: {moment!r}")


def _settle(table: CronTable, zone: ZoneInfo, civil: datetime | None, gap: GapPolicy) -> datetime | None:
    """Map a civil match to its instant, in the first pass if it is repeated; deal with it if it is left out."""
    while civil is not None:
        before, behind = _offsets(civil)
        if before >= behind:
            return civil.replace(tzinfo=UTC) - before
        after_gap = _change_at(zone, civil)
        if gap is GapPolicy.RUN_AFTER and not table.every_hour:
            return after_gap
        civil = table.first_at_or_after(after_gap.astimezone(zone))
    return None


def _next_in_fold(
    table: CronTable, zone: ZoneInfo, local: datetime, gap: GapPolicy, fold: FoldPolicy
) -> datetime | None:
    """Find the next firing from within a repeated stretch of civil time: this pass, then the second, then later."""
    before, behind = _offsets(local)
    change = _change_at(zone, local)
    repeat_start = change.astimezone(zone).replace(fold=0)
    repeat_end = repeat_start + (before - behind)
    second_pass = repeat_start
    if local.fold == 0:
        civil = table.first_at_or_after(local + _SECOND)
        if civil is not None and civil < repeat_end:
            return civil.replace(tzinfo=UTC) - before
    else:
        second_pass = local.replace(fold=0) + _SECOND
    if table.follows_real_time or fold is FoldPolicy.BOTH:
        civil = table.first_at_or_after(second_pass)
        if civil is not None and civil < repeat_end:
            return civil.replace(tzinfo=UTC) - behind
    return _settle(table, zone, table.first_at_or_after(repeat_end), gap)


def _offsets(civil: datetime) -> tuple[timedelta, timedelta]:
    """Return the offsets of a civil time before and behind the change that it may lie at.

    Equal: it occurs once. The first is larger: it is repeated. The second is larger: it is left out (PEP 495).
    """
    before, behind = civil.replace(fold=0).utcoffset(), civil.replace(fold=1).utcoffset()
    if before is None or behind is None:
        raise ValueError(f"a time zone without offsets: {civil.tzinfo!r}")
    return before, behind


def _change_at(zone: ZoneInfo, civil: datetime) -> datetime:
    """Return the instant of the change that repeats or leaves out `civil`: the first one with the new offset."""
    before, behind = _offsets(civil)
    wall = civil.replace(tzinfo=UTC, fold=0)
    return _bisect_change(zone, wall - max(before, behind), wall - min(before, behind))


def _bisect_change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the first instant in (low, high] with another offset than at `low`; whole seconds."""
    offset = low.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high


def _first_change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime:
    """Return the first instant in (start, end) with another offset than at `start`, else `end`. Looks day by day."""
    offset = start.astimezone(zone).utcoffset()
    low = start
    while low < end:
        high = min(low + _DAY, end)
        if high.astimezone(zone).utcoffset() != offset:
            return _bisect_change(zone, low, high)
        low = high
    return end


def _wall(offset_at: datetime, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return what a clock with the offset of `offset_at` shows at `instant`, without a zone."""
    offset = offset_at.astimezone(zone).utcoffset() or timedelta()
    return instant.replace(tzinfo=None) + offset


def _past_second_pass(zone: ZoneInfo, instant: datetime, wall: datetime) -> datetime:
    """Move `wall`, what a clock shows at `instant`, to the end of the repeated stretch if it is in its second pass."""
    local = instant.astimezone(zone)
    if local.fold == 0:
        return wall
    before, behind = _offsets(local)
    return _wall(instant, zone, _change_at(zone, local)) + (before - behind)


def _made_up(table: CronTable, gap_start: datetime, gap_end: datetime) -> int:
    """Return 1 if a firing makes up for the civil times in [gap_start, gap_end) and is not one anyway, else 0."""
    if table.count_civil(gap_start, gap_end) == 0:
        return 0
    return 0 if table.count_civil(gap_end, gap_end + _SECOND) else 1
