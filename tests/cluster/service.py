"""How well a cluster served while things were broken, as plain questions to a history: pure."""

from itertools import pairwise

from tests.cluster.history import History

# Jobs of these reasons run again by intent, whatever is broken.
BY_INTENT = frozenset({"again_failed", "again_timed_out"})


def finished_per_s(history: History, *, since: float, until: float) -> float:
    """Return how many executions ended per second in a span of the monotonic clock."""
    ends = [one.ended.mono for one in history.executions if one.ended is not None]
    return sum(since <= end < until for end in ends) / (until - since)


def answered_per_s(history: History, *, since: float, until: float) -> float:
    """Return how many jobs were acknowledged per second in a span of the monotonic clock."""
    return sum(since <= one.at.mono < until for one in history.answers) / (until - since)


def restarted(history: History) -> list[str]:
    """Return the processes that did not live throughout."""
    lives = history.lives
    again = {life.process for life in lives if sum(life.process == other.process for other in lives) > 1}
    ended = {life.process for life in lives if life.killed or life.terminated or life.gone}
    return sorted(again | ended)


def longest_silence_s(history: History, *, since: float, until: float) -> float:
    """Return the longest time in a span of the monotonic clock in which no execution began."""
    starts = sorted(one.started.mono for one in history.executions if since <= one.started.mono < until)
    marks = [since, *starts, until]
    return max(later - earlier for earlier, later in pairwise(marks))
