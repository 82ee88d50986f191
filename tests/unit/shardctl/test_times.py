"""Durations and instants as people write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_manager.shardctl.times import (
    format_duration,
    format_instant,
    format_second,
    parse_duration,
    parse_instant,
    parse_since,
)

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("2h30m", timedelta(hours=2, minutes=30)),
        ("1d", timedelta(days=1)),
        ("2w1d", timedelta(days=15)),
        ("1.5h", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1m250ms", timedelta(minutes=1, milliseconds=250)),
        ("0s", timedelta()),
        ("36500d", timedelta(days=36_500)),
    ],
)
def test_durations_that_are_read(text: str, span: timedelta) -> None:
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "text",
    ["", "5", "m", "-5m", "5 m", "5M", "30m2h", "5m5m", "1e3s", "5min", "١s", "1_000s", "5m\n", "1.s", "9" * 40 + "s"],
)
def test_other_durations_are_refused_with_the_way_to_write_them(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 90s, 5m, 2h30m or 1d"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["36501d", "999999999w", "36500d1ms"])
def test_durations_beyond_a_century_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at most 36500d"):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=36_500 * 86_400_000))
def test_a_formatted_duration_is_read_back(millis: int) -> None:
    span = timedelta(milliseconds=millis)
    assert parse_duration(format_duration(span)) == span


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(), "0s"),
        (timedelta(milliseconds=20), "20ms"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(hours=25), "1d1h"),
        (timedelta(minutes=-5), "-5m"),
        (timedelta(microseconds=400), "0s"),
    ],
)
def test_durations_are_worded_shortly(span: timedelta, text: str) -> None:
    assert format_duration(span) == text


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-01T05:30:00Z", datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),
        ("2026-11-01t05:30:00z", datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),
        ("2026-11-01 01:30:00-04:00", datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),
        ("2026-11-01T05:30:00.25Z", datetime(2026, 11, 1, 5, 30, 0, 250_000, tzinfo=UTC)),
        ("2026-11-01T05:30:00.123456789Z", datetime(2026, 11, 1, 5, 30, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_instants_that_are_read(text: str, instant: datetime) -> None:
    assert parse_instant(text) == instant
    assert parse_instant(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-01",
        "2026-11-01T05:30:00",
        "2026-11-01T05:30Z",
        "2026-13-01T05:30:00Z",
        "2026-11-01T24:30:00Z",
        "2026-11-01T05:30:60Z",
        "2026-W44-1T05:30:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2026-11-01T05:30:00+99:00",
    ],
)
def test_other_instants_are_refused_naming_them(text: str) -> None:
    with pytest.raises(ValueError, match="is not an instant") as refused:
        parse_instant(text)
    assert repr(text) in str(refused.value)


def test_since_takes_a_duration_back_from_now_or_an_instant() -> None:
    assert parse_since("1h", NOW) == NOW - timedelta(hours=1)
    assert parse_since("2026-10-31T00:00:00Z", NOW) == datetime(2026, 10, 31, tzinfo=UTC)
    with pytest.raises(ValueError, match="or an instant as"):
        parse_since("yesterday", NOW)


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_formatted_instant_is_read_back(instant: datetime) -> None:
    assert parse_instant(format_instant(instant)) == instant


def test_instants_are_worded_in_utc() -> None:
    paris = datetime(2026, 11, 1, 6, 30, 0, 5000, tzinfo=timezone(timedelta(hours=1)))
    assert format_instant(paris) == "2026-11-01T05:30:00.005000Z"
    assert format_second(paris) == "2026-11-01T05:30:00Z"
