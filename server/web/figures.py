"""From what a cluster did lately to the figures and lines of the overview. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from server.api.convert import instant, span
from server.web.format import span as span_text
from shardwheel.v1.activity_pb2 import Activity, ActivityStep

#: The figures of "now" are those of so long: shorter ones jump about.
NOW: Final = timedelta(minutes=1)
BARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of the chart; the heights are parts of the highest bar, from 0 to 1."""

    at: int
    completed: float
    failed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the overview says of the last minute and the last quarter of an hour. Rates are per second."""

    completed_rate: float
    started_rate: float
    completed: int
    failed: int
    retried: int
    lateness_p50: str
    lateness_p99: str
    completed_line: Sequence[float]
    failed_line: Sequence[float]
    lateness_line: Sequence[float]
    bars: Sequence[Bar]
    top_rate: float
    young_nodes: Sequence[str]
    missing_nodes: Sequence[str]
    nodes: Sequence[str]

    @property
    def idle(self) -> bool:
        """Whether nothing has run at all."""
        return not (self.completed or self.failed or self.retried or any(self.lateness_line) or self.started_rate)


def figures(activity: Activity) -> Figures:
    """Return the figures of an activity, whose steps are complete."""
    step_s = span(activity.step).total_seconds()
    steps = activity.steps
    latest = steps[-max(1, round(NOW.total_seconds() / step_s)) :]
    seconds = _counted_s(activity, latest) or step_s
    per_bar = max(1, len(steps) // BARS)
    groups = [steps[at : at + per_bar] for at in range(0, len(steps), per_bar)]
    bars, top = _bars(groups)
    begun = instant(steps[0].begun_at) if steps else None
    return Figures(
        completed_rate=sum(one.completed_count for one in latest) / seconds,
        started_rate=sum(one.started_count for one in latest) / seconds,
        completed=sum(one.completed_count for one in steps),
        failed=sum(one.failed_count for one in steps),
        retried=sum(one.retried_count for one in steps),
        lateness_p50=lateness(activity.lateness_bounds, latest, 0.5),
        lateness_p99=lateness(activity.lateness_bounds, latest, 0.99),
        completed_line=[sum(one.completed_count for one in group) for group in groups],
        failed_line=[sum(one.failed_count + one.retried_count for one in group) for group in groups],
        lateness_line=[_class(_summed(group), 0.99) for group in groups],
        bars=bars,
        top_rate=top / (per_bar * step_s),
        young_nodes=[one.node for one in activity.nodes if begun and instant(one.since) > begun + span(activity.step)],
        missing_nodes=list(activity.missing_nodes),
        nodes=[one.node for one in activity.nodes],
    )


def _counted_s(activity: Activity, steps: Sequence[ActivityStep]) -> float:
    """Return how long it is that any node has counted in these steps, in seconds."""
    since = min((instant(one.since) for one in activity.nodes), default=None)
    counted = [one for one in steps if since is not None and instant(one.begun_at) + span(activity.step) > since]
    return len(counted) * span(activity.step).total_seconds()


def lateness(bounds: Sequence[float], steps: Sequence[ActivityStep], share: float) -> str:
    """Return how late that share of the attempts started at most, in words; empty if none started."""
    number = _class(_summed(steps), share)
    if number == 0:
        return ""
    if number > len(bounds):
        return f"over {span_text(timedelta(seconds=bounds[-1]))}" if bounds else ""
    return f"≤ {span_text(timedelta(seconds=bounds[number - 1]))}"


def line(values: Sequence[float], width: int, height: int) -> str:
    """Return the points of an SVG polyline through values, the largest of which touches the top."""
    top = max(values, default=0) or 1
    across = width / max(1, len(values) - 1)
    # Half a stroke is kept free at the top and at the bottom.
    points = [(at * across, height - 1 - value / top * (height - 2)) for at, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def area(values: Sequence[float], width: int, height: int) -> str:
    """Return the points of the polygon between that line and the ground."""
    return f"0,{height} {line(values, width, height)} {width},{height}"


def _bars(groups: Sequence[Sequence[ActivityStep]]) -> tuple[list[Bar], int]:
    completed = [sum(one.completed_count for one in group) for group in groups]
    failed = [sum(one.failed_count + one.retried_count for one in group) for group in groups]
    top = max((good + bad for good, bad in zip(completed, failed, strict=True)), default=0)
    return [
        Bar(at=at, completed=good / (top or 1), failed=bad / (top or 1))
        for at, (good, bad) in enumerate(zip(completed, failed, strict=True))
    ], top


def _summed(steps: Sequence[ActivityStep]) -> list[int]:
    return [sum(counts) for counts in zip(*(one.lateness_counts for one in steps), strict=True)]


def _class(counts: Sequence[int], share: float) -> int:
    """Return the number of the class, from 1, in which that share of all is reached; 0 if there is nothing."""
    total = sum(counts)
    below = 0
    for number, one in enumerate(counts, start=1):
        below += one
        if total and below >= share * total:
            return number
    return 0
