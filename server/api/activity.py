"""GetActivity: what all nodes did lately, added up."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from server.api.convert import duration, instant, span, timestamp
from server.observe.activity import KEPT_STEPS, STEP, ActivityLog
from shardwheel.v1.activity_pb2 import Activity, ActivityStep, CountingNode

# Answers this young are used again, so that a crowd of onlookers costs no more than one.
LIFE_S: Final = 1.0

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTS: Final = ("started_count", "completed_count", "failed_count", "cancelled_count", "retried_count")


class OtherNodes(Protocol):
    """The other nodes of the cluster."""

    async def activities(self) -> Mapping[str, Activity | None]:
        """Return what each live node did, None for one that does not answer soon."""


class NodeActivity:
    """What this node did, as a message."""

    def __init__(
        self,
        node: str,
        log: ActivityLog,
        lateness_bounds: Sequence[float],
        clock_ahead: Callable[[], timedelta | None],
    ) -> None:
        self._node = node
        self._log = log
        self._bounds = lateness_bounds
        self._clock_ahead = clock_ahead

    def message(self) -> Activity:
        """Return the steps in which this node counted."""
        ahead = self._clock_ahead()
        about = CountingNode(
            node=self._node,
            since=timestamp(self._log.since),
            clock_ahead=None if ahead is None else duration(ahead),
        )
        return Activity(
            step=duration(STEP),
            steps=[
                ActivityStep(
                    begun_at=timestamp(step.begun_at),
                    started_count=step.counts.started,
                    completed_count=step.counts.completed,
                    failed_count=step.counts.failed,
                    cancelled_count=step.counts.cancelled,
                    retried_count=step.counts.retried,
                    lateness_counts=step.counts.lateness,
                )
                for step in self._log.steps()
            ],
            lateness_bounds=self._bounds,
            nodes=[about],
        )


class ClusterActivity:
    """What all nodes did. `now` is the clock of the database as this node knows it."""

    def __init__(self, own: NodeActivity, others: OtherNodes, now: Callable[[], datetime]) -> None:
        self._own = own
        self._others = others
        self._now = now
        self._latest: tuple[float, Activity] | None = None
        self._asking = asyncio.Lock()

    async def message(self) -> Activity:
        """Return the sum over all nodes that answer, a second old at most."""
        clock = asyncio.get_running_loop().time
        async with self._asking:
            if self._latest is None or clock() - self._latest[0] > LIFE_S:
                answers = await self._others.activities()
                found = [self._own.message(), *(one for one in answers.values() if one is not None)]
                missing = sorted(node for node, one in answers.items() if one is None)
                self._latest = clock(), added_up(found, missing, self._now())
            return self._latest[1]


def added_up(activities: Sequence[Activity], missing: Sequence[str], now: datetime) -> Activity:
    """Return the sum of activities, the first of which says how long a step is, as 180 steps that end before `now`.

    Nodes of other versions may count lateness in other classes: a count stays with the upper bound that it has.
    """
    step = span(activities[0].step)
    bounds = sorted({bound for one in activities for bound in one.lateness_bounds})
    sums: dict[int, Counter[str]] = {}
    lateness: dict[int, Counter[float]] = {}
    for one in activities:
        for part in one.steps:
            number = _number(instant(part.begun_at), step)
            sums.setdefault(number, Counter()).update({name: getattr(part, name) for name in _COUNTS})
            classes = zip([*one.lateness_bounds, float("inf")], part.lateness_counts, strict=False)
            lateness.setdefault(number, Counter()).update(dict(classes))
    current = _number(now, step)
    return Activity(
        step=activities[0].step,
        steps=[
            ActivityStep(
                begun_at=timestamp(_EPOCH + number * step),
                **sums.get(number, Counter()),
                lateness_counts=_counts(lateness.get(number, Counter()), bounds),
            )
            for number in range(current - KEPT_STEPS, current)
        ],
        lateness_bounds=bounds,
        nodes=_by_name(node for one in activities for node in one.nodes),
        missing_nodes=missing,
    )


def _counts(found: Counter[float], bounds: Sequence[float]) -> list[int]:
    return [found[bound] for bound in (*bounds, float("inf"))]


def _by_name(nodes: Iterable[CountingNode]) -> list[CountingNode]:
    return sorted(nodes, key=lambda one: one.node)


def _number(at: datetime, step: timedelta) -> int:
    return (at - _EPOCH) // step
