"""What a cluster did lately: steps of one node, and their sum over nodes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from server.api.activity import NodeActivity, added_up
from server.api.convert import instant
from server.observe.activity import KEPT_STEPS, STEP, ActivityLog, Counts
from shardwheel.v1.activity_pb2 import Activity

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BOUNDS = [0.01, 1.0]


class Counting:
    """A node whose counters and clock are set by hand."""

    def __init__(self, node: str = "a", bounds: list[float] = BOUNDS) -> None:
        self.now = NOON
        self.counts = Counts(lateness=(0,) * (len(bounds) + 1))
        self.log = ActivityLog(lambda: self.counts, lambda: self.now)
        self._activity = NodeActivity(node, self.log, bounds, lambda: timedelta(seconds=2))

    def tick(self, steps: float = 1) -> None:
        self.now += steps * STEP
        self.log.look()

    def count(self, **more: int) -> None:
        self.counts = replace(self.counts, **{name: getattr(self.counts, name) + by for name, by in more.items()})

    def late(self, *by_class: int) -> None:
        lateness = tuple(count + more for count, more in zip(self.counts.lateness, by_class, strict=True))
        self.counts = replace(self.counts, lateness=lateness)

    @property
    def message(self) -> Activity:
        return self._activity.message()


def test_what_is_counted_in_a_step_is_shown_once_it_is_over() -> None:
    node = Counting()
    node.count(started=3, completed=2)
    node.late(2, 1, 0)
    node.tick(0.9)
    assert list(node.message.steps) == []
    node.tick(0.1)
    node.count(failed=1)
    node.tick()
    first, second = node.message.steps
    assert (first.started_count, first.completed_count, list(first.lateness_counts)) == (3, 2, [2, 1, 0])
    assert (second.started_count, second.failed_count) == (0, 1)
    assert [instant(one.begun_at) for one in (first, second)] == [NOON, NOON + STEP]


def test_a_quarter_of_an_hour_is_kept() -> None:
    node = Counting()
    for _ in range(KEPT_STEPS + 20):
        node.count(started=1)
        node.tick()
    assert len(node.message.steps) == KEPT_STEPS
    # A node whose event loop stood still so long shows nothing that is older.
    node.tick(KEPT_STEPS + 5)
    assert len(node.message.steps) == 0


def test_a_clock_that_is_set_back_gives_no_step_twice() -> None:
    node = Counting()
    for _ in range(10):
        node.tick()
    node.tick(-5)
    node.count(started=1)
    node.tick()
    [step] = node.message.steps
    assert (instant(step.begun_at), step.started_count) == (NOON + 5 * STEP, 1)


def test_the_sum_has_every_step_and_says_whose_it_is() -> None:
    first, second = Counting("b"), Counting("a")
    for node in (first, second):
        node.count(started=2)
        node.late(1, 0, 1)
        node.tick()
    second.tick()
    second.count(cancelled=1)
    second.tick()
    total = added_up([first.message, second.message], ["c"], second.now)
    assert len(total.steps) == KEPT_STEPS
    assert instant(total.steps[-1].begun_at) == second.now - STEP
    assert [one.started_count for one in total.steps[-3:]] == [4, 0, 0]
    assert [one.cancelled_count for one in total.steps[-3:]] == [0, 0, 1]
    assert list(total.steps[-3].lateness_counts) == [2, 0, 2]
    assert [one.node for one in total.nodes] == ["a", "b"]
    assert [one.clock_ahead.ToTimedelta() for one in total.nodes] == 2 * [timedelta(seconds=2)]
    assert list(total.missing_nodes) == ["c"]
    assert total.step.ToTimedelta() == timedelta(seconds=5)


def test_nodes_with_other_classes_of_lateness_are_added_up_by_bound() -> None:
    old, new = Counting("old", [0.01, 1.0]), Counting("new", [0.01, 0.5, 1.0])
    old.late(1, 2, 3)
    new.late(10, 20, 30, 40)
    for node in (old, new):
        node.tick()
    total = added_up([old.message, new.message], [], new.now)
    assert list(total.lateness_bounds) == [0.01, 0.5, 1.0]
    assert list(total.steps[-1].lateness_counts) == [11, 20, 32, 43]
