"""Which nominal times become jobs: the rules by value, and that none is lost or doubled."""

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain.cron import parse_cron
from server.domain.errors import InvalidInput
from server.domain.firing import (
    FiringPlan,
    ScheduleState,
    SkipReason,
    plan_firings,
)
from server.domain.schedule import (
    CatchUpPolicy,
    CronSpec,
    IntervalSpec,
    OnceSpec,
    OverlapPolicy,
    ScheduleTiming,
)
from server.domain.schedule_times import count_nominals, next_nominal
from tests.support.thoroughness import examples

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
MINUTELY = ScheduleTiming(spec=CronSpec(expression=parse_cron("* * * * *")))
SECONDLY = ScheduleTiming(spec=CronSpec(expression=parse_cron("* * * * * *")))


def state(
    timing: ScheduleTiming = MINUTELY,
    pointer: datetime | None = NOON,
    overlap: OverlapPolicy = OverlapPolicy.ALLOW,
    catch_up: CatchUpPolicy = CatchUpPolicy.ONE,
    running: int = 0,
    pending: int = 0,
) -> ScheduleState:
    return ScheduleState(
        schedule_id=42,
        timing=timing,
        next_nominal=pointer,
        overlap=overlap,
        catch_up=catch_up,
        live_running=running,
        live_pending=pending,
    )


def fired(plan: FiringPlan) -> list[datetime]:
    return [firing.nominal for firing in plan.firings]


def test_on_time() -> None:
    plan = plan_firings(state(), NOON + timedelta(milliseconds=3))
    assert fired(plan) == [NOON]
    assert plan.firings[0].due_at == NOON
    assert (plan.next_fire_at, plan.skipped, plan.cancel_live) == (NOON + MINUTE, {}, False)


def test_exactly_at_the_nominal_time() -> None:
    assert fired(plan_firings(state(), NOON)) == [NOON]


@pytest.mark.parametrize("pointer", [None, NOON])
def test_nothing_is_due(pointer: datetime | None) -> None:
    plan = plan_firings(state(pointer=pointer), NOON - SECOND)
    assert (plan.firings, plan.next_fire_at, plan.skipped) == ((), pointer, {})


def test_a_short_delay_loses_no_firing_of_a_dense_schedule() -> None:
    for catch_up in CatchUpPolicy:
        plan = plan_firings(state(SECONDLY, catch_up=catch_up), NOON + 4 * SECOND)
        assert fired(plan) == [NOON + n * SECOND for n in range(5)]
        assert (plan.next_fire_at, plan.skipped) == (NOON + 5 * SECOND, {})


class TestCatchUp:
    """After an outage of three hours, back at 15:00:30."""

    now = NOON + timedelta(hours=3, seconds=30)

    def test_one_makes_the_newest_good_for_all(self) -> None:
        plan = plan_firings(state(), self.now)
        assert fired(plan) == [NOON + timedelta(hours=3)]
        assert plan.skipped == {SkipReason.CATCH_UP: 180}
        assert plan.next_fire_at == NOON + timedelta(hours=3) + MINUTE

    def test_one_needs_no_missed_firing_if_one_is_on_time(self) -> None:
        plan = plan_firings(state(), NOON + timedelta(hours=3, seconds=5))
        assert fired(plan) == [NOON + timedelta(hours=3)]
        assert plan.skipped == {SkipReason.CATCH_UP: 180}

    def test_one_outside_the_window_is_skipped(self) -> None:
        daily = ScheduleTiming(spec=CronSpec(expression=parse_cron("0 12 * * *")))
        late = replace(state(daily), catch_up_window=timedelta(hours=2))
        plan = plan_firings(late, self.now)
        assert (fired(plan), plan.skipped) == ([], {SkipReason.CATCH_UP: 1})
        assert plan.next_fire_at == NOON + timedelta(days=1)

    def test_none_skips_what_is_later_than_the_grace(self) -> None:
        plan = plan_firings(state(catch_up=CatchUpPolicy.NONE), self.now)
        assert (fired(plan), plan.skipped) == ([], {SkipReason.CATCH_UP: 181})
        plan = plan_firings(state(catch_up=CatchUpPolicy.NONE), NOON + timedelta(hours=3, seconds=10))
        assert (fired(plan), plan.skipped) == ([NOON + timedelta(hours=3)], {SkipReason.CATCH_UP: 180})

    def test_all_fires_the_oldest_first_in_batches(self) -> None:
        everything: list[datetime] = []
        pointer: datetime | None = NOON
        sizes = []
        while pointer is not None and pointer <= self.now:
            plan = plan_firings(state(pointer=pointer, catch_up=CatchUpPolicy.ALL), self.now)
            everything += fired(plan)
            sizes.append(len(plan.firings))
            pointer = plan.next_fire_at
            assert plan.skipped == {}
        assert everything == [NOON + n * MINUTE for n in range(181)]
        assert sizes == [100, 81]

    def test_all_keeps_to_the_window(self) -> None:
        late = replace(state(catch_up=CatchUpPolicy.ALL), catch_up_window=timedelta(minutes=20))
        plan = plan_firings(late, self.now)
        assert fired(plan) == [NOON + timedelta(hours=3) - n * MINUTE for n in range(19, -1, -1)]
        assert plan.skipped == {SkipReason.CATCH_UP: 161}

    def test_all_fires_the_newest_up_to_the_limit(self) -> None:
        late = replace(state(SECONDLY, catch_up=CatchUpPolicy.ALL), catch_up_limit=150)
        first = plan_firings(late, self.now)
        assert fired(first) == [self.now - n * SECOND for n in range(149, 49, -1)]
        assert first.skipped == {SkipReason.LIMIT: 3 * 3600 + 31 - 150}
        second = plan_firings(replace(late, next_nominal=first.next_fire_at), self.now)
        assert fired(second) == [self.now - n * SECOND for n in range(49, -1, -1)]
        assert second.skipped == {}

    @pytest.mark.parametrize("catch_up", CatchUpPolicy)
    @pytest.mark.parametrize("overlap", OverlapPolicy)
    def test_a_year_of_seconds_is_bounded_work(self, catch_up: CatchUpPolicy, overlap: OverlapPolicy) -> None:
        now = NOON + timedelta(days=365)
        start = time.perf_counter()
        plan = plan_firings(state(SECONDLY, overlap=overlap, catch_up=catch_up), now)
        assert time.perf_counter() - start < 0.5
        assert plan.next_fire_at is not None
        decided = (plan.next_fire_at - NOON) // SECOND
        assert len(plan.firings) + sum(plan.skipped.values()) == decided
        assert decided > 364 * 86400


class TestOverlap:
    """Three firings are due and on time."""

    timing = ScheduleTiming(spec=CronSpec(expression=parse_cron("*/4 * * * * *")))
    now = NOON + 9 * SECOND
    due = (NOON, NOON + 4 * SECOND, NOON + 8 * SECOND)

    def plan(self, overlap: OverlapPolicy, *, running: int = 0, pending: int = 0) -> FiringPlan:
        plan = plan_firings(state(self.timing, overlap=overlap, running=running, pending=pending), self.now)
        assert plan.next_fire_at == NOON + 12 * SECOND
        return plan

    def test_skip(self) -> None:
        plan = self.plan(OverlapPolicy.SKIP)
        assert (fired(plan), plan.skipped) == ([self.due[0]], {SkipReason.OVERLAP: 2})
        for running, pending in ((1, 0), (0, 1)):
            plan = self.plan(OverlapPolicy.SKIP, running=running, pending=pending)
            assert (fired(plan), plan.skipped) == ([], {SkipReason.OVERLAP: 3})

    def test_buffer_one(self) -> None:
        for running in (0, 1):
            plan = self.plan(OverlapPolicy.BUFFER_ONE, running=running)
            assert (fired(plan), plan.skipped) == ([self.due[0]], {SkipReason.BUFFER_FULL: 2})
        plan = self.plan(OverlapPolicy.BUFFER_ONE, running=1, pending=1)
        assert (fired(plan), plan.skipped) == ([], {SkipReason.BUFFER_FULL: 3})

    @pytest.mark.parametrize("overlap", [OverlapPolicy.ALLOW, OverlapPolicy.BUFFER_ALL])
    def test_all(self, overlap: OverlapPolicy) -> None:
        plan = self.plan(overlap, running=3, pending=5)
        assert (fired(plan), plan.skipped, plan.cancel_live) == (list(self.due), {}, False)

    def test_cancel_running(self) -> None:
        plan = self.plan(OverlapPolicy.CANCEL_RUNNING)
        assert (fired(plan), plan.skipped, plan.cancel_live) == ([self.due[2]], {SkipReason.OVERLAP: 2}, False)
        assert self.plan(OverlapPolicy.CANCEL_RUNNING, running=1).cancel_live

    def test_skip_and_all_missed(self) -> None:
        plan = plan_firings(state(overlap=OverlapPolicy.SKIP, catch_up=CatchUpPolicy.ALL), NOON + timedelta(hours=50))
        assert fired(plan) == [NOON + timedelta(hours=50) - 999 * MINUTE]
        assert plan.skipped == {SkipReason.CATCH_UP: 26 * 60, SkipReason.LIMIT: 441, SkipReason.OVERLAP: 999}
        assert plan.next_fire_at == NOON + timedelta(hours=50) + MINUTE


def test_jitter_delays_the_job_and_not_the_schedule() -> None:
    timing = replace(MINUTELY, jitter=timedelta(seconds=50))
    plan = plan_firings(state(timing), NOON)
    assert NOON < plan.firings[0].due_at < NOON + timedelta(seconds=50)
    assert plan.next_fire_at == NOON + MINUTE
    assert plan_firings(state(timing), NOON + SECOND).firings == plan.firings


def test_the_last_firing_ends_the_schedule() -> None:
    plan = plan_firings(state(replace(MINUTELY, end_at=NOON + SECOND)), NOON)
    assert (fired(plan), plan.next_fire_at) == ([NOON], None)
    plan = plan_firings(state(ScheduleTiming(spec=OnceSpec(at=NOON))), NOON + timedelta(hours=5))
    assert (fired(plan), plan.next_fire_at) == ([NOON], None)


def test_a_pointer_past_the_end_is_counted() -> None:
    plan = plan_firings(state(replace(MINUTELY, end_at=NOON)), NOON + SECOND)
    assert (fired(plan), plan.next_fire_at, plan.skipped) == ([], None, {SkipReason.ENDED: 1})


def test_a_pointer_that_is_no_nominal_time_any_more_fires_once() -> None:
    """As after an update of the zone data."""
    stale = NOON + timedelta(seconds=17)
    plan = plan_firings(state(pointer=stale), NOON + timedelta(seconds=20))
    assert (fired(plan), plan.next_fire_at) == ([stale], NOON + MINUTE)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidInput, match="catch_up_window: must not be negative"):
        replace(state(), catch_up_window=-SECOND)
    with pytest.raises(InvalidInput, match="catch_up_limit: must be at least 1"):
        replace(state(), catch_up_limit=0)


timings = st.builds(
    ScheduleTiming,
    spec=st.one_of(
        st.builds(
            CronSpec,
            expression=st.sampled_from(["* * * * * *", "*/7 * * * * *", "*/5 * * * *", "30 * * * *"]).map(parse_cron),
            time_zone=st.sampled_from(["UTC", "America/New_York"]),
        ),
        st.builds(
            IntervalSpec,
            every=st.sampled_from([SECOND, timedelta(seconds=1.5), timedelta(minutes=13)]),
            anchor=st.just(NOON + timedelta(microseconds=1)),
        ),
        st.builds(OnceSpec, at=st.just(NOON + timedelta(minutes=3))),
    ),
    end_at=st.none() | st.timedeltas(SECOND, timedelta(hours=5)).map(lambda delta: NOON + delta),
    jitter=st.sampled_from([timedelta(0), timedelta(seconds=40)]),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    timing=timings,
    overlap=st.sampled_from(OverlapPolicy),
    catch_up=st.sampled_from(CatchUpPolicy),
    window=st.sampled_from([timedelta(0), timedelta(minutes=5), timedelta(days=1)]),
    limit=st.sampled_from([1, 7, 1000]),
    steps=st.lists(st.timedeltas(timedelta(0), timedelta(minutes=40)), min_size=1, max_size=8),
    live=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=8, max_size=8),
)
def test_no_nominal_time_is_lost_or_doubled(
    timing: ScheduleTiming,
    overlap: OverlapPolicy,
    catch_up: CatchUpPolicy,
    window: timedelta,
    limit: int,
    steps: list[timedelta],
    live: list[tuple[int, int]],
) -> None:
    """The clock advances by any steps; all nominal times up to the final pointer have fired once or were counted."""
    pointer = next_nominal(timing, NOON)
    jobs: list[datetime] = []
    skipped: Counter[SkipReason] = Counter()
    now = NOON
    for step, (running, pending) in zip(steps, live, strict=False):
        now += step
        before = state(timing, pointer, overlap, catch_up, running, pending)
        plan = plan_firings(replace(before, catch_up_window=window, catch_up_limit=limit), now, batch=20)
        assert plan.next_fire_at is None or pointer is None or plan.next_fire_at >= pointer
        assert pointer is not None or plan.next_fire_at is None
        assert len(plan.firings) <= 20
        assert all(firing.nominal <= now and firing.due_at >= firing.nominal for firing in plan.firings)
        assert all(count > 0 for count in plan.skipped.values())
        jobs += fired(plan)
        skipped.update(plan.skipped)
        if plan.next_fire_at is not None and plan.next_fire_at <= now:
            assert len(plan.firings) == 20
        pointer = plan.next_fire_at
    assert jobs == sorted(set(jobs))
    assert all(next_nominal(timing, job - timedelta(microseconds=1)) == job for job in jobs)
    decided_until = now if pointer is None else pointer - timedelta(microseconds=1)
    assert len(jobs) + sum(skipped.values()) == count_nominals(timing, NOON, decided_until)
