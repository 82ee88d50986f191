from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain.cron import parse_cron
from server.domain.cron_walk import FoldPolicy, GapPolicy
from server.domain.errors import InvalidInput
from server.domain.schedule import (
    CatchUpPolicy,
    CronSpec,
    IntervalSpec,
    OnceSpec,
    OverlapPolicy,
    ScheduleTiming,
    TimingSpec,
)
from server.domain.schedule_times import count_nominals, jitter_offset, last_nominal, next_nominal
from tests.support.thoroughness import examples

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOURLY = CronSpec(expression=parse_cron("0 * * * *"))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + "+00:00")


def nominals(timing: ScheduleTiming, after: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    while len(found) < count and (nominal := next_nominal(timing, after)) is not None:
        found.append(nominal)
        after = nominal
    return found


def test_stored_numbers_do_not_change() -> None:
    assert [(policy.name, policy.value) for policy in OverlapPolicy] == [
        ("SKIP", 1),
        ("BUFFER_ONE", 2),
        ("BUFFER_ALL", 3),
        ("CANCEL_RUNNING", 4),
        ("ALLOW", 5),
    ]
    assert [(policy.name, policy.value) for policy in CatchUpPolicy] == [("ONE", 1), ("ALL", 2), ("NONE", 3)]
    assert [(policy.name, policy.value) for policy in GapPolicy] == [("RUN_AFTER", 1), ("SKIP", 2)]
    assert [(policy.name, policy.value) for policy in FoldPolicy] == [("FIRST", 1), ("BOTH", 2)]


def test_cron_in_its_zone_with_its_policies() -> None:
    fixed = CronSpec(expression=parse_cron("30 1 * * *"), time_zone="America/New_York", fold=FoldPolicy.BOTH)
    after = at("2026-11-01T00:00:00")
    assert nominals(ScheduleTiming(spec=fixed), after, 2) == [at("2026-11-01T05:30:00"), at("2026-11-01T06:30:00")]


def test_intervals_keep_the_phase_of_their_anchor() -> None:
    spec = IntervalSpec(every=timedelta(minutes=7), anchor=at("2026-03-01T12:00:03.500000"))
    assert nominals(ScheduleTiming(spec=spec), NOON, 2) == [
        at("2026-03-01T12:00:03.500000"),
        at("2026-03-01T12:07:03.500000"),
    ]
    before_the_anchor = next_nominal(ScheduleTiming(spec=spec), at("2026-02-28T11:59:03.500000"))
    assert before_the_anchor == at("2026-02-28T12:05:03.500000")


def test_once_fires_once() -> None:
    timing = ScheduleTiming(spec=OnceSpec(at=NOON.astimezone(timezone(timedelta(hours=5)))))
    assert nominals(timing, NOON - timedelta(days=1), 5) == [NOON]
    found = next_nominal(timing, NOON - timedelta(days=1))
    assert found is not None
    assert found.tzinfo is UTC
    assert next_nominal(timing, NOON) is None


def test_start_is_included_and_end_is_not() -> None:
    timing = ScheduleTiming(spec=HOURLY, start_at=NOON, end_at=NOON + timedelta(hours=3))
    hours = [NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=2)]
    assert nominals(timing, NOON - timedelta(days=40), 10) == hours
    assert last_nominal(timing, NOON + timedelta(days=40)) == hours[-1]
    assert last_nominal(timing, NOON - timedelta(seconds=1)) is None
    assert count_nominals(timing, NOON - timedelta(days=40), NOON + timedelta(days=40)) == 3


specs: st.SearchStrategy[TimingSpec] = st.one_of(
    st.builds(
        CronSpec,
        expression=st.sampled_from(
            ["*/20 * * * *", "30 2 * * *", "0 0 L * *", "7,8 1-3 * * 1-5", "*/40 30 * * * *"]
        ).map(parse_cron),
        time_zone=st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"]),
        gap=st.sampled_from(GapPolicy),
        fold=st.sampled_from(FoldPolicy),
    ),
    st.builds(
        IntervalSpec,
        every=st.timedeltas(timedelta(seconds=1), timedelta(days=3)),
        anchor=st.timedeltas(timedelta(days=-900), timedelta(days=900)).map(lambda delta: NOON + delta),
    ),
    st.builds(OnceSpec, at=st.timedeltas(timedelta(days=-9), timedelta(days=9)).map(lambda delta: NOON + delta)),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    spec=specs,
    after=st.timedeltas(timedelta(days=-10), timedelta(days=10)).map(lambda delta: NOON + delta),
    start=st.none() | st.timedeltas(timedelta(days=-10), timedelta(0)).map(lambda delta: NOON + delta),
    end=st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=10)).map(lambda delta: NOON + delta),
)
def test_next_last_and_count_agree(
    spec: TimingSpec, after: datetime, start: datetime | None, end: datetime | None
) -> None:
    timing = ScheduleTiming(spec=spec, start_at=start, end_at=end)
    found = nominals(timing, after, 20)
    assert all(earlier < later for earlier, later in pairwise([after, *found]))
    assert all((start is None or start <= nominal) and (end is None or nominal < end) for nominal in found)
    for index, nominal in enumerate(found):
        assert last_nominal(timing, nominal) == nominal
        assert count_nominals(timing, after, nominal) == index + 1
        assert count_nominals(timing, nominal, nominal) == 0


@pytest.mark.parametrize(
    "every", [timedelta(0), timedelta(seconds=-5), timedelta(milliseconds=999), timedelta(days=4000)]
)
def test_intervals_out_of_bounds_are_refused(every: timedelta) -> None:
    with pytest.raises(InvalidInput, match=r"every: must be from 1 s to 3660 days"):
        IntervalSpec(every=every, anchor=NOON)


def test_bad_timings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="end_at: must lie after start_at"):
        ScheduleTiming(spec=HOURLY, start_at=NOON, end_at=NOON)
    for jitter in (timedelta(seconds=-1), timedelta(days=2)):
        with pytest.raises(InvalidInput, match="jitter: must be from 0 to 1 day"):
            ScheduleTiming(spec=HOURLY, jitter=jitter)
    with pytest.raises(InvalidInput, match="time_zone: is not an IANA time zone"):
        CronSpec(expression=parse_cron("@daily"), time_zone="Nowhere")
    with pytest.raises(ValueError, match="needs a time zone"):
        OnceSpec(at=NOON.replace(tzinfo=None))


def test_the_calendar_ends() -> None:
    spec = IntervalSpec(every=timedelta(days=3000), anchor=NOON)
    assert next_nominal(ScheduleTiming(spec=spec), datetime(9999, 1, 1, tzinfo=UTC)) is None


def test_jitter_is_stable_and_spreads_a_herd_evenly() -> None:
    following = NOON + timedelta(hours=1)
    offsets = [jitter_offset(n, NOON, timedelta(seconds=60), following) for n in range(50_000)]
    assert offsets[:2] == [timedelta(microseconds=21132377), timedelta(microseconds=5597960)]
    counts = Counter(offset // timedelta(seconds=1) for offset in offsets)
    assert set(counts) == set(range(60))
    assert all(abs(count - 50_000 / 60) < 150 for count in counts.values())


def test_jitter_differs_between_firings_of_a_schedule() -> None:
    offsets = {jitter_offset(7, NOON + timedelta(hours=n), timedelta(seconds=60), None) for n in range(100)}
    assert len(offsets) == 100


@given(
    schedule_id=st.integers(0, 2**63 - 1),
    jitter=st.timedeltas(timedelta(0), timedelta(days=1)),
    distance=st.timedeltas(timedelta(microseconds=1), timedelta(days=2)),
)
def test_jitter_never_reaches_the_next_firing(schedule_id: int, jitter: timedelta, distance: timedelta) -> None:
    offset = jitter_offset(schedule_id, NOON, jitter, NOON + distance)
    assert timedelta(0) <= offset < distance
    assert offset <= jitter
