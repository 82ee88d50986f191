"""Rates and lateness of the last minute, from steps of five seconds."""

import math
from datetime import timedelta

from shard_manager.shardctl.pace import curve, pace_of
from shardwheel.v1.activity_pb2 import Activity, ActivityStep


def activity(*steps: ActivityStep) -> Activity:
    made = Activity(steps=steps, lateness_bounds=[0.01, 0.1, 1.0])
    made.step.FromTimedelta(timedelta(seconds=5))
    return made


def test_rates_are_those_of_the_last_minute() -> None:
    old = [ActivityStep(started_count=1000)] * 5
    new = [ActivityStep(started_count=50, completed_count=40, failed_count=5, retried_count=1)] * 12
    pace = pace_of(activity(*old, *new))
    assert (pace.started, pace.completed, pace.failed, pace.retried) == (10.0, 8.0, 1.0, 0.2)
    assert pace.rates_text() == "10.0/s started, 8.0/s completed, 1.0/s failed, 0.2/s retried"


def test_a_cluster_that_has_just_begun_is_not_divided_by_a_minute() -> None:
    assert pace_of(activity(ActivityStep(started_count=50))).started == 10.0


def test_lateness_is_the_bound_of_the_class() -> None:
    pace = pace_of(activity(ActivityStep(lateness_counts=[98, 1, 1, 0]), ActivityStep(lateness_counts=[0, 0, 0, 0])))
    assert (pace.late_p50, pace.late_p99) == (0.01, 0.1)
    assert pace.lateness_text() == "p50 ≤ 10ms, p99 ≤ 100ms"


def test_lateness_beyond_all_classes_and_none_at_all() -> None:
    beyond = pace_of(activity(ActivityStep(lateness_counts=[0, 0, 0, 3])))
    assert beyond.late_p50 is not None
    assert math.isinf(beyond.late_p50)
    assert beyond.to_json()["lateness_p50"] is None
    assert beyond.lateness_text() == "p50 beyond all classes, p99 beyond all classes"
    nothing = pace_of(Activity())
    assert (nothing.started, nothing.late_p50) == (0.0, None)
    assert nothing.lateness_text() == "p50 -, p99 -"


def test_a_curve_reaches_from_nothing_to_the_most() -> None:
    assert curve([0, 1, 50, 100]) == "▁▂▅█ at most 100 in a step"
    assert curve([0, 0]) == "▁▁"
    assert curve([]) == ""
