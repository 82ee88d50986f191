"""Known hard inputs of cron calculators with their right answers, as exact values."""

import time
from datetime import UTC, datetime

import pytest

from server.domain.cron import parse_cron
from server.domain.cron_walk import FoldPolicy, GapPolicy, firings, next_after
from server.domain.errors import InvalidInput
from server.domain.zones import load_zone


def walk(expression: str, zone: str, after: str, count: int, **policies: GapPolicy | FoldPolicy) -> list[str]:
    gap, fold = policies.get("gap", GapPolicy.RUN_AFTER), policies.get("fold", FoldPolicy.FIRST)
    assert isinstance(gap, GapPolicy)
    assert isinstance(fold, FoldPolicy)
    start = datetime.fromisoformat(after)
    found = firings(parse_cron(expression), load_zone(zone), start, count, gap=gap, fold=fold)
    return [instant.strftime("%Y-%m-%dT%H:%M:%SZ") for instant in found]


def refusal_of(expression: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        parse_cron(expression)
    return refused.value


def seconds_to_refuse(expression: str) -> float:
    """Return the best of five times, for other processes run too."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        refusal_of(expression)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def test_a_time_in_the_gap_runs_once_right_after_it() -> None:
    after = "2026-03-07T17:00:00Z"
    assert walk("30 2 * * *", "America/New_York", after, 2) == ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]


def test_a_time_in_the_gap_can_be_skipped() -> None:
    after = "2026-03-07T17:00:00Z"
    assert walk("30 2 * * *", "America/New_York", after, 1, gap=GapPolicy.SKIP) == ["2026-03-09T06:30:00Z"]


def test_a_fixed_time_in_the_fold_fires_once() -> None:
    after = "2026-10-31T16:00:00Z"
    assert walk("30 1 * * *", "America/New_York", after, 2) == ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]


@pytest.mark.parametrize("after", ["2026-11-01T05:30:00Z", "2026-11-01T06:10:00Z", "2026-11-01T06:30:00Z"])
def test_a_fixed_time_stays_once_when_computed_from_inside_the_fold(after: str) -> None:
    assert walk("30 1 * * *", "America/New_York", after, 1) == ["2026-11-02T06:30:00Z"]


def test_a_fixed_time_in_the_fold_can_fire_in_both_passes() -> None:
    found = walk("30 1 * * *", "America/New_York", "2026-10-31T16:00:00Z", 3, fold=FoldPolicy.BOTH)
    assert found == ["2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"]


def test_a_wildcard_follows_real_time_through_the_fold() -> None:
    assert walk("*/30 * * * *", "America/New_York", "2026-11-01T04:40:00Z", 5) == [
        "2026-11-01T05:00:00Z",
        "2026-11-01T05:30:00Z",
        "2026-11-01T06:00:00Z",
        "2026-11-01T06:30:00Z",
        "2026-11-01T07:00:00Z",
    ]


def test_a_wildcard_minute_alone_follows_real_time_through_the_fold() -> None:
    assert walk("*/30 1 * * *", "America/New_York", "2026-11-01T04:40:00Z", 5)[:4] == [
        "2026-11-01T05:00:00Z",
        "2026-11-01T05:30:00Z",
        "2026-11-01T06:00:00Z",
        "2026-11-01T06:30:00Z",
    ]


def test_a_wildcard_hour_goes_on_in_real_time_over_the_gap() -> None:
    assert walk("15 * * * *", "America/New_York", "2026-03-08T06:00:00Z", 2) == [
        "2026-03-08T06:15:00Z",
        "2026-03-08T07:15:00Z",
    ]


def test_every_second_hour_is_made_up_if_the_gap_takes_it() -> None:
    assert walk("0 */2 * * *", "America/New_York", "2026-03-08T04:30:00Z", 3) == [
        "2026-03-08T05:00:00Z",
        "2026-03-08T07:00:00Z",
        "2026-03-08T08:00:00Z",
    ]


def test_a_gap_at_midnight() -> None:
    after = "2026-04-23T10:00:00Z"
    assert walk("0 0 * * *", "Africa/Cairo", after, 2) == ["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"]


def test_half_hour_changes() -> None:
    assert walk("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", 1) == ["2026-10-03T15:30:00Z"]
    assert walk("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", 2) == [
        "2026-04-04T14:45:00Z",
        "2026-04-05T15:15:00Z",
    ]


def test_a_time_outside_the_fold_is_not_moved_by_it() -> None:
    assert walk("00 20 * * *", "Europe/Paris", "2022-10-29T22:00:00Z", 3) == [
        "2022-10-30T19:00:00Z",
        "2022-10-31T19:00:00Z",
        "2022-11-01T19:00:00Z",
    ]


def test_a_day_that_a_zone_left_out() -> None:
    found = walk("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 3)
    assert found == ["2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"]


@pytest.mark.parametrize(
    "expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4 *", "0 0 30 2 */2", "0 0 31 2,4,6,9,11 *"]
)
def test_impossible_dates_are_refused_at_once(expression: str) -> None:
    refused = refusal_of(expression)
    assert seconds_to_refuse(expression) < 0.005
    assert (refused.field, refused.value) == ("cron", expression)
    assert "day-of-month: " in refused.reason
    assert "never occurs in month" in refused.reason


def test_leap_days_are_found_over_the_year_2100() -> None:
    assert walk("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", 1) == ["2028-02-29T00:00:00Z"]
    assert walk("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", 1) == ["2104-02-29T00:00:00Z"]


def test_two_restricted_day_fields_match_either() -> None:
    found = walk("0 0 13 * 5", "UTC", "2026-01-01T00:00:00Z", 4)
    assert [day[:10] for day in found] == ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]
    assert "a day matches if either does" in parse_cron("0 0 13 * 5").notes[0]


def test_a_day_field_with_a_star_narrows_the_other() -> None:
    found = walk("0 0 */2 * 3", "UTC", "2026-01-01T00:00:00Z", 2)
    assert [day[:10] for day in found] == ["2026-01-07", "2026-01-21"]
    assert "a day must match both" in parse_cron("0 0 */2 * 3").notes[0]


def test_six_fields_have_the_seconds_first() -> None:
    assert walk("*/15 * * * * *", "UTC", "2026-01-01T00:00:00Z", 4) == [
        "2026-01-01T00:00:15Z",
        "2026-01-01T00:00:30Z",
        "2026-01-01T00:00:45Z",
        "2026-01-01T00:01:00Z",
    ]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("*/0 * * * *", "minute: a step must be at least 1"),
        ("60 * * * *", "minute: 60 is outside 0-59"),
        ("-1 * * * *", "minute: '-1' is a negative number"),
        ("-1", "has 1 fields"),
        ("1,,2 * * * *", "minute: an item of the list is empty"),
        ("¹ * * * *", "ASCII"),
        ("١ * * * *", "ASCII"),
        ("* * * *\u00a0*", "ASCII"),
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        (",".join(["1"] * 10_000) + " * * * *", "at most 256"),
    ],
)
def test_malformed_expressions_are_refused_in_bounded_time(expression: str, reason: str) -> None:
    refused = refusal_of(expression)
    assert seconds_to_refuse(expression) < 0.005
    assert reason in refused.reason
    assert len(str(refused)) < 600


def test_the_search_ends_with_the_calendar() -> None:
    expression = parse_cron("0 0 1 1 *")
    assert next_after(expression, load_zone("UTC"), datetime(9998, 6, 1, tzinfo=UTC)) is None
    assert next_after(expression, load_zone("Pacific/Apia"), datetime.max.replace(tzinfo=UTC)) is None
    assert next_after(expression, load_zone("America/New_York"), datetime.min.replace(tzinfo=UTC)) is not None
