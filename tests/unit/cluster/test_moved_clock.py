"""Claims that were stamped by a clock which was moved."""

import pytest

from tests.cluster.history import Execution
from tests.cluster.journal import Instant
from tests.cluster.moved_clock import Move, on_machine_time

FORWARD = Move(1000.0, 300.0)
BACK = Move(1010.0, 0.0)


def claimed(at: float, *, started: float) -> Execution:
    return Execution(
        job=1, claim=1, attempt=1, handler="h", worker="w", pid=1, claimed_at=at, started=Instant(started, started)
    )


@pytest.mark.parametrize(
    ("stamp", "started", "moves", "machine", "offset_s"),
    [
        (990.0, 990.1, [], 990.0, 0.0),
        (990.0, 990.1, [FORWARD], 990.0, 0.0),
        (1301.0, 1001.1, [FORWARD], 1001.0, 300.0),
        (1301.0, 1001.1, [FORWARD, BACK], 1001.0, 300.0),
        (1011.0, 1011.1, [FORWARD, BACK], 1011.0, 0.0),
        # The same stamp again, after the clock has caught up: a start tells which one it was.
        (1301.0, 1301.1, [FORWARD, BACK], 1301.0, 0.0),
        (705.0, 1005.1, [Move(1000.0, -300.0), BACK], 1005.0, -300.0),
        # Stamped by the new time, just before the move was written down.
        (1299.9, 1000.1, [FORWARD], 999.9, 300.0),
    ],
)
def test_stamp_is_read_by_the_clock_of_its_moment(
    stamp: float, started: float, moves: list[Move], machine: float, offset_s: float
) -> None:
    [found] = on_machine_time([claimed(stamp, started=started)], moves)
    assert found.claimed_at == pytest.approx(machine)
    assert found.offset_s == offset_s
