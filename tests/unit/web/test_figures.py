"""The figures of the overview."""

from datetime import UTC, datetime, timedelta

from server.api.convert import duration, timestamp
from server.web.figures import area, figures, line
from shardwheel.v1.activity_pb2 import Activity, ActivityStep, CountingNode

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP = timedelta(seconds=5)
STEPS = 180
BOUNDS = [0.01, 1.0]


def activity(latest: dict[int, ActivityStep], *, since: timedelta = timedelta(hours=1)) -> Activity:
    """What a node has done; the steps that are given count from the end, the last of which is 1."""
    steps = []
    for back in range(STEPS, 0, -1):
        step = ActivityStep(begun_at=timestamp(NOON - back * STEP))
        step.MergeFrom(latest.get(back, ActivityStep()))
        if not step.lateness_counts:
            step.lateness_counts.extend([0, 0, 0])
        steps.append(step)
    return Activity(
        step=duration(STEP),
        steps=steps,
        lateness_bounds=BOUNDS,
        nodes=[CountingNode(node="a", since=timestamp(NOON - since))],
        missing_nodes=["b"],
    )


def test_now_is_the_last_minute_and_the_sums_are_of_a_quarter_of_an_hour() -> None:
    shown = figures(
        activity(
            {
                1: ActivityStep(completed_count=60, failed_count=1, started_count=61, lateness_counts=[60, 1, 0]),
                50: ActivityStep(completed_count=1000, retried_count=7, started_count=9, lateness_counts=[0, 0, 9]),
            }
        )
    )
    assert (shown.completed_rate, shown.completed, shown.failed, shown.retried) == (1.0, 1060, 1, 7)
    assert (shown.lateness_p50, shown.lateness_p99) == ("≤ 10 ms", "≤ 1 s")
    assert (shown.missing_nodes, shown.young_nodes, shown.nodes) == (["b"], [], ["a"])
    assert not shown.idle


def test_what_is_late_beyond_all_classes_is_said_to_be() -> None:
    shown = figures(activity({1: ActivityStep(started_count=4, lateness_counts=[1, 0, 3])}))
    assert (shown.lateness_p50, shown.lateness_p99) == ("over 1 s", "over 1 s")


def test_a_rate_is_one_over_the_time_that_was_counted() -> None:
    shown = figures(activity({1: ActivityStep(completed_count=50)}, since=timedelta(seconds=9)))
    assert (shown.completed_rate, shown.young_nodes) == (5.0, ["a"])


def test_nothing_is_nothing() -> None:
    shown = figures(activity({}))
    assert shown.idle
    assert (shown.lateness_p50, shown.completed_rate, shown.top_rate) == ("", 0.0, 0.0)


def test_the_highest_bar_fills_the_chart() -> None:
    shown = figures(activity({1: ActivityStep(completed_count=30, retried_count=15), 4: ActivityStep(failed_count=9)}))
    assert len(shown.bars) == 60
    assert [(one.completed, one.failed) for one in shown.bars[-2:]] == [(0.0, 0.2), (30 / 45, 15 / 45)]
    assert shown.top_rate == 3.0


def test_lines_stay_in_their_picture() -> None:
    assert line([0, 5, 10], 100, 20) == "0.0,19.0 50.0,10.0 100.0,1.0"
    assert line([0, 0], 100, 20) == "0.0,19.0 100.0,19.0"
    assert area([1], 100, 20) == "0,20 0.0,1.0 100,20"
