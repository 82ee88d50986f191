"""The table of all shards: what is asked for, and what is not any more."""

from shard_manager.coordinator import Lease
from shard_manager.events import Cause, ManagerEvent
from shard_manager.shard_table import ShardTable

LEASES = {shard: Lease(shard=shard, generation=1, token=shard + 1) for shard in range(4)}


class Desk:
    """A table whose starts, stops and events are written down; time stands still until it is moved."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.stopped: list[tuple[int, bool]] = []
        self.events: list[ManagerEvent] = []
        self.now_s = 100.0
        self.table = ShardTable(
            "a",
            4,
            start=lambda shard, epoch: self.started.append((shard, epoch)),
            stop=lambda shard, graceful: self.stopped.append((shard, graceful)),
            emit=self.events.append,
            clock=lambda: self.now_s,
            setback_initial_s=1.0,
            setback_max_s=4.0,
        )

    def activate(self) -> None:
        self.table.reconcile(range(4), {}, Cause.PLAN)
        self.table.leased(LEASES.values())
        self.table.fenced_in(self.table.take_fences(), dict.fromkeys(range(4), 1))
        for shard in range(4):
            self.table.started(shard, 1)


def test_requests_are_collected_and_taken_once() -> None:
    desk = Desk()
    desk.table.reconcile([1, 3], {}, Cause.PLAN)
    assert desk.table.waits_for_lease
    assert desk.table.take_acquires() == [1, 3]
    assert desk.table.take_acquires() == []
    desk.table.reconcile([1, 3], {}, Cause.PLAN)
    assert desk.table.take_acquires() == [1, 3]
    desk.table.leased([LEASES[1]])
    assert desk.table.take_fences() == [LEASES[1]]
    assert desk.table.take_releases() == []


def test_the_end_of_the_session_withdraws_what_was_asked_for() -> None:
    desk = Desk()
    desk.table.reconcile([0, 1, 2], {2: LEASES[2], 3: LEASES[3]}, Cause.PLAN)
    desk.table.leased([LEASES[1]])
    desk.table.end_session(Cause.SESSION_LOST)
    assert desk.table.is_idle
    assert desk.table.take_acquires() == []
    assert desk.table.take_fences() == []
    assert desk.table.take_releases() == []


def test_all_shards_become_active_together() -> None:
    desk = Desk()
    desk.activate()
    assert desk.table.owned == dict.fromkeys(range(4), 1)
    assert desk.started == [(shard, 1) for shard in range(4)]
    assert desk.table.is_serving


def test_a_start_that_is_told_after_the_shard_was_lost_is_no_news() -> None:
    desk = Desk()
    desk.activate()
    desk.table.lost_epoch(2, None)
    seen = len(desk.events)
    desk.table.started(2, 1)
    assert len(desk.events) == seen


def test_setbacks_grow_and_are_forgiven_after_a_while() -> None:
    desk = Desk()
    pauses = []
    for _ in range(5):
        desk.activate()
        desk.table.lost_epoch(0, None)
        desk.table.stopped(0)
        desk.table.released(desk.table.take_releases())
        retry_s = desk.table.next_retry_s()
        pauses.append(None if retry_s is None else retry_s - desk.now_s)
        desk.table.reconcile(range(4), {shard: LEASES[shard] for shard in (1, 2, 3)}, Cause.PLAN)
        assert (desk.table.take_acquires() == [0]) == (retry_s is None)
        desk.now_s += 5
    assert pauses == [None, 1.0, 2.0, 4.0, 4.0]
    desk.now_s += 60
    desk.activate()
    desk.table.lost_epoch(0, None)
    assert desk.table.next_retry_s() is None
