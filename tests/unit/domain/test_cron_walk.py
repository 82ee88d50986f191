"""Properties of the walk over civil time, against a brute-force oracle and against itself."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain.cron import parse_cron
from server.domain.cron_walk import (
    FoldPolicy,
    GapPolicy,
    count_firings,
    firings,
    next_after,
    previous_before,
)
from server.domain.zones import load_zone
from tests.support.thoroughness import examples
from tests.unit.domain.cron_oracle import brute_force, offset_changes

ZONES = [
    "UTC",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Dublin",
    "Europe/Paris",
    "Pacific/Apia",
    "Pacific/Chatham",
]

seconds = st.sampled_from(["0", "30", "*", "*/15", "5-20/5", "59"])
minutes = st.sampled_from(["0", "15", "30", "45", "0,30", "*", "*/7", "*/20", "10-50/10", "1", "59"])
hours = st.sampled_from(["*", "0", "1", "2", "3", "1,2", "0-3", "22-23", "*/2", "1-23/2", "*/12", "12"])
days = st.sampled_from(["*", "*", "*", "1", "L", "15,L", "*/2", "25-31", "13", "30"])
months = st.sampled_from(["*", "*", "*", "3", "10,11", "1-6", "*/4", "12"])
weekdays = st.sampled_from(["*", "*", "*", "0", "1-5", "6,7", "5#1", "0#5", "*/3", "0L"])
minutely = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
secondly = st.tuples(seconds, minutes, hours, days, months, weekdays).map(" ".join)
gaps = st.sampled_from(GapPolicy)
folds = st.sampled_from(FoldPolicy)
instants = st.integers(631_152_000, 2_840_140_800).map(
    lambda second: datetime.fromtimestamp(second, UTC)
)  # 1990 to 2060


@lru_cache(maxsize=256)
def changes(zone: str, year: int) -> tuple[datetime, ...]:
    return tuple(offset_changes(load_zone(zone), year))


@st.composite
def near_changes(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone, and an instant near one of its changes of a year, if it has any in that year."""
    zone, year = draw(st.sampled_from(ZONES)), draw(st.sampled_from([1998, 2011, 2026, 2040]))
    candidates = changes(zone, year) or (datetime(year, 6, 1, tzinfo=UTC),)
    return zone, draw(st.sampled_from(candidates))


# Anywhere in time, and often inside or just before a gap or a fold.
places = st.one_of(
    st.tuples(st.sampled_from(ZONES), instants),
    st.tuples(near_changes(), st.timedeltas(timedelta(hours=-2), timedelta(hours=3))).map(
        lambda drawn: (drawn[0][0], drawn[0][1] - drawn[1])
    ),
)


def check_against_brute_force(
    expression: str, zone_name: str, start: datetime, end: datetime, tick: int, gap: GapPolicy, fold: FoldPolicy
) -> None:
    zone, parsed = load_zone(zone_name), parse_cron(expression)
    expected = brute_force(
        expression,
        zone,
        start,
        end,
        tick=tick,
        run_after_gap=gap is GapPolicy.RUN_AFTER,
        both_passes=fold is FoldPolicy.BOTH,
    )
    found = firings(parsed, zone, start, len(expected) + 1, gap=gap, fold=fold)
    assert [instant for instant in found if instant <= end] == expected
    assert count_firings(parsed, zone, start, end, gap=gap, fold=fold) == len(expected)
    last = previous_before(parsed, zone, end + timedelta(microseconds=1), gap=gap, fold=fold)
    if expected:
        assert last == expected[-1]
    else:
        assert last is None or last <= start


@settings(max_examples=examples(150), deadline=None)
@given(
    near=near_changes(),
    before=st.integers(0, 240),
    length=st.integers(1, 400),
    expression=minutely,
    gap=gaps,
    fold=folds,
)
def test_minutes_equal_the_brute_force(
    near: tuple[str, datetime], before: int, length: int, expression: str, gap: GapPolicy, fold: FoldPolicy
) -> None:
    zone, change = near
    start = change - timedelta(minutes=before)
    check_against_brute_force(expression, zone, start, start + timedelta(minutes=length), 60, gap, fold)


@settings(max_examples=examples(15), deadline=None)
@given(near=near_changes(), before=st.integers(-4000, 4000), expression=secondly, gap=gaps, fold=folds)
def test_seconds_equal_the_brute_force(
    near: tuple[str, datetime], before: int, expression: str, gap: GapPolicy, fold: FoldPolicy
) -> None:
    zone, change = near
    start = change - timedelta(seconds=before)
    check_against_brute_force(expression, zone, start, start + timedelta(seconds=3000), 1, gap, fold)


def test_the_left_out_day_equals_the_brute_force() -> None:
    start = datetime(2011, 12, 29, 0, 0, tzinfo=UTC)
    for expression in ("0 12 * * *", "0 12 30 12 *", "15 * * * *", "*/20 3 * * 5", "0 0 31 * *"):
        for gap in GapPolicy:
            end = start + timedelta(days=3)
            check_against_brute_force(expression, "Pacific/Apia", start, end, 60, gap, FoldPolicy.FIRST)


@settings(max_examples=examples(150), deadline=None)
@given(
    place=places,
    expression=st.one_of(minutely, secondly),
    thousandths=st.lists(st.integers(0, 999), min_size=3, max_size=6),
    gap=gaps,
    fold=folds,
)
def test_the_next_firing_is_the_same_from_everywhere_before_it(
    place: tuple[str, datetime], expression: str, thousandths: list[int], gap: GapPolicy, fold: FoldPolicy
) -> None:
    zone, after, parsed = load_zone(place[0]), place[1], parse_cron(expression)
    previous = next_after(parsed, zone, after, gap=gap, fold=fold)
    assert previous is not None
    following = next_after(parsed, zone, previous, gap=gap, fold=fold)
    assert following is not None
    assert after < previous < following
    between = [previous + (following - previous) * n // 1000 for n in thousandths]
    for moment in [previous, following - timedelta(microseconds=1), *between]:
        assert next_after(parsed, zone, moment, gap=gap, fold=fold) == following


@settings(max_examples=examples(60), deadline=None)
@given(place=places, expression=st.one_of(minutely, secondly), gap=gaps, fold=folds)
def test_backward_equals_forward(
    place: tuple[str, datetime], expression: str, gap: GapPolicy, fold: FoldPolicy
) -> None:
    zone, after, parsed = load_zone(place[0]), place[1], parse_cron(expression)
    forward = firings(parsed, zone, after, 12, gap=gap, fold=fold)
    assert forward == sorted(set(forward))
    assert all(instant.tzinfo is UTC and instant.microsecond == 0 for instant in forward)
    for earlier, later in pairwise(forward):
        assert previous_before(parsed, zone, later, gap=gap, fold=fold) == earlier
    assert count_firings(parsed, zone, after, forward[-1], gap=gap, fold=fold) == 12


@pytest.mark.parametrize(
    ("zone_name", "change"),
    [
        ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
        ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    ],
)
def test_every_second_fires_every_second(zone_name: str, change: datetime) -> None:
    found = firings(parse_cron("* * * * * *"), load_zone(zone_name), change - timedelta(seconds=3), 3610)
    assert found == [change + timedelta(seconds=n) for n in range(-2, 3608)]


@pytest.mark.parametrize(
    ("expression", "fold", "count"),
    [
        ("10,50 1 * * *", FoldPolicy.FIRST, 2),
        ("10,50 1 * * *", FoldPolicy.BOTH, 4),
        ("*/30 1 * * *", FoldPolicy.FIRST, 4),
    ],
)
def test_counting_a_fold(expression: str, fold: FoldPolicy, count: int) -> None:
    zone, parsed = load_zone("America/New_York"), parse_cron(expression)
    start, end = datetime(2026, 11, 1, 4, tzinfo=UTC), datetime(2026, 11, 1, 8, tzinfo=UTC)
    assert count_firings(parsed, zone, start, end, fold=fold) == count
    assert len(set(firings(parsed, zone, start, count, fold=fold))) == count
    rest = [instant for instant in firings(parsed, zone, start, count, fold=fold) if instant > start.replace(hour=6)]
    assert count_firings(parsed, zone, start.replace(hour=6), end, fold=fold) == len(rest)


@pytest.mark.parametrize(
    ("expression", "gap", "count"),
    [
        ("10,50 2 * * *", GapPolicy.RUN_AFTER, 1),
        ("10,50 2 * * *", GapPolicy.SKIP, 0),
        ("0 2,3 * * *", GapPolicy.RUN_AFTER, 1),
        ("5 2,3 * * *", GapPolicy.RUN_AFTER, 2),
        ("15 * * * *", GapPolicy.RUN_AFTER, 4),
    ],
)
def test_counting_a_gap(expression: str, gap: GapPolicy, count: int) -> None:
    zone, parsed = load_zone("America/New_York"), parse_cron(expression)
    start, end = datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 3, 8, 9, tzinfo=UTC)
    assert count_firings(parsed, zone, start, end, gap=gap) == count
    assert len([instant for instant in firings(parsed, zone, start, 9, gap=gap) if instant <= end]) == count


def test_counting_years_of_seconds_is_arithmetic() -> None:
    start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    count = count_firings(parse_cron("* * * * * *"), load_zone("Europe/Paris"), start, end)
    assert count == (end - start) // timedelta(seconds=1)


def test_a_rare_date_has_a_previous_one() -> None:
    expression, zone = parse_cron("0 0 29 2 *"), load_zone("UTC")
    assert previous_before(expression, zone, datetime(2104, 2, 29, tzinfo=UTC)) == datetime(2096, 2, 29, tzinfo=UTC)
    assert previous_before(expression, zone, datetime(3, 1, 1, tzinfo=UTC)) is None


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        next_after(parse_cron("* * * * *"), load_zone("UTC"), datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None))
