"""The database's clock as faults have moved it, and the machine's time of what it has stamped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path

from tests.cluster.history import Execution
from tests.cluster.journal import number, read_lines

# A move is written down just after it is made.
_SLACK_S = 0.25


@dataclass(frozen=True, slots=True)
class Move:
    """From when, by the machine's clock, the database's was ahead of it by how much."""

    wall: float
    offset_s: float


def read_moves(path: Path) -> list[Move]:
    """Return the moves of the clock that a cluster has written down."""
    return [Move(number(line, "wall"), number(line, "offset_s")) for line in read_lines(path)]


def on_machine_time(executions: Iterable[Execution], moves: Sequence[Move]) -> tuple[Execution, ...]:
    """Return the executions with their claims on the machine's clock, and how far the database's was ahead of it."""
    return tuple(_on_machine_time(one, moves) for one in executions)


def _on_machine_time(execution: Execution, moves: Sequence[Move]) -> Execution:
    # One stamp may stand for several moments, if the clock went back. A claim is followed by its start.
    offset_s = 0.0
    for move, following in pairwise([Move(-inf, 0.0), *moves, Move(inf, 0.0)]):
        claimed = execution.claimed_at - move.offset_s
        if move.wall - _SLACK_S <= claimed < following.wall + _SLACK_S and claimed <= execution.started.wall + _SLACK_S:
            offset_s = move.offset_s
    return replace(execution, claimed_at=execution.claimed_at - offset_s, offset_s=offset_s)
