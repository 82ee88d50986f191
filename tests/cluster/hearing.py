"""When no node could hear a worker: pure, from what was done to processes and to the network."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from tests.cluster.addresses import POSTGRES
from tests.cluster.history import Cut, History, Life

Interval = tuple[float, float]
"""From when to when, on the monotonic clock."""

RETURN_S: Final = 4.0
"""A worker is back at the latest so long after the way to a node is open again, or a node was started or went on."""
FOR_EVER: Final = float("inf")


def cut_off(history: History) -> dict[str, list[Interval]]:
    """Return when each worker was cut off by the network: from all nodes that could have kept its lease.

    A node keeps no lease while it is dead or stopped, or does not reach PostgreSQL; then it does not end one either. So
    a time in which no node was cut off from the worker itself is none of these.
    """
    nodes: dict[str, list[Life]] = defaultdict(list)
    workers: dict[str, list[Life]] = defaultdict(list)
    for life in history.lives:
        (nodes if life.kind == "node" else workers)[life.process].append(life)
    deaf = {name: union([*_dead(lives), *_stopped(lives), *_away(history.cuts, name)]) for name, lives in nodes.items()}
    found: dict[str, list[Interval]] = {}
    for worker, lives in workers.items():
        own = {node: _between(history.cuts, worker, node) for node in nodes}
        if not any(own.values()):
            continue
        unheard: list[Interval] = [(-FOR_EVER, FOR_EVER)]
        for node in nodes:
            unheard = intersection(unheard, union([*deaf[node], *own[node]]))
        unheard = union([*unheard, *_stopped(lives)])
        cuts = union([one for some in own.values() for one in some])
        found[worker] = [one for one in unheard if intersection([one], cuts)]
    return found


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same times as intervals that do not touch, in order."""
    merged: list[Interval] = []
    for began, ended in sorted(intervals):
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged


def intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the times that are in both; each has to be in order, without intervals that touch."""
    common: list[Interval] = []
    left, right = 0, 0
    while left < len(first) and right < len(second):
        began = max(first[left][0], second[right][0])
        ended = min(first[left][1], second[right][1])
        if began < ended:
            common.append((began, ended))
        if first[left][1] <= second[right][1]:
            left += 1
        else:
            right += 1
    return common


def _dead(lives: Sequence[Life]) -> list[Interval]:
    """Return when a node did not serve, or had only just started."""
    dead: list[Interval] = []
    ended = -FOR_EVER
    for life in sorted(lives, key=lambda one: one.started):
        dead.append((ended, life.started.mono + RETURN_S))
        ends = [at.mono for at in (life.killed, life.terminated, life.gone) if at is not None]
        ended = min(ends, default=FOR_EVER)
    return [*dead, (ended, FOR_EVER)] if ended < FOR_EVER else dead


def _stopped(lives: Sequence[Life]) -> list[Interval]:
    return [
        (stop.began.mono, FOR_EVER if stop.ended is None else stop.ended.mono + RETURN_S)
        for life in lives
        for stop in life.stops
    ]


def _away(cuts: Sequence[Cut], node: str) -> list[Interval]:
    """Return when a node did not reach PostgreSQL, or one server of it."""
    return [_interval(cut) for cut in cuts if cut.source == node and cut.target.startswith(POSTGRES)]


def _between(cuts: Sequence[Cut], worker: str, node: str) -> list[Interval]:
    return [_interval(cut) for cut in cuts if (cut.source, cut.target) == (worker, node)]


def _interval(cut: Cut) -> Interval:
    return cut.began.mono, FOR_EVER if cut.ended is None else cut.ended.mono + RETURN_S
