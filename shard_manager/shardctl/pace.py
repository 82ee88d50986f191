"""How fast a cluster works and how late it starts what is due, from what its nodes have counted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from shard_manager.shardctl.output import Json
from shard_manager.shardctl.times import format_duration
from shardwheel.v1.activity_pb2 import Activity, ActivityStep

WINDOW: Final = timedelta(minutes=1)
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What was done in the last minute, per second.

    Lateness is told as the upper bound of its class, in seconds: None if nothing started, infinite beyond all classes.
    """

    started: float
    completed: float
    failed: float
    retried: float
    late_p50: float | None
    late_p99: float | None

    def rates_text(self) -> str:
        """The rates for people."""
        return (
            f"{_rate(self.started)} started, {_rate(self.completed)} completed, {_rate(self.failed)} failed, "
            f"{_rate(self.retried)} retried"
        )

    def lateness_text(self) -> str:
        """The lateness for people."""
        return f"p50 {_bound(self.late_p50)}, p99 {_bound(self.late_p99)}"

    def to_json(self) -> dict[str, Json]:
        """All of it for programs; a lateness beyond all classes is null, as is none."""
        return {
            "window": WINDOW.total_seconds(),
            "started_per_second": self.started,
            "completed_per_second": self.completed,
            "failed_per_second": self.failed,
            "retried_per_second": self.retried,
            "lateness_p50": _finite(self.late_p50),
            "lateness_p99": _finite(self.late_p99),
        }


def pace_of(activity: Activity) -> Pace:
    """The pace of all nodes that answered."""
    step = activity.step.ToTimedelta()
    steps = activity.steps[-max(1, WINDOW // step) :] if step else []
    seconds = len(steps) * step.total_seconds() or 1.0
    return Pace(
        started=sum(one.started_count for one in steps) / seconds,
        completed=sum(one.completed_count for one in steps) / seconds,
        failed=sum(one.failed_count for one in steps) / seconds,
        retried=sum(one.retried_count for one in steps) / seconds,
        late_p50=_late(0.5, activity.lateness_bounds, steps),
        late_p99=_late(0.99, activity.lateness_bounds, steps),
    )


def curve(counts: Sequence[int]) -> str:
    """The counts as bars, the highest of which is full, and how much that is."""
    most = max(counts, default=0)
    if not most:
        return _BARS[0] * len(counts)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts) + f" at most {most} in a step"


def _late(share: float, bounds: Sequence[float], steps: Sequence[ActivityStep]) -> float | None:
    """The bound of the class in which the share of all counts is reached."""
    sums = [sum(counts) for counts in zip(*(step.lateness_counts for step in steps), strict=False)]
    total, below = sum(sums), 0
    if not total:
        return None
    for bound, count in zip([*bounds, math.inf], sums, strict=False):
        below += count
        if below >= share * total:
            return bound
    return math.inf


def _rate(per_second: float) -> str:
    return f"{per_second:.1f}/s" if per_second < 100 else f"{per_second:.0f}/s"


def _bound(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "beyond all classes" if math.isinf(seconds) else f"≤ {format_duration(timedelta(seconds=seconds))}"


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else seconds
