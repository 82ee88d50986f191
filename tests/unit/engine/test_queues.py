"""Queues: what a claimer sees of handlers whose jobs are published."""

from collections.abc import Sequence
from datetime import UTC, datetime

from server.domain.dispatch import queue_lease
from server.domain.handler import HandlerView
from server.domain.job import AttemptRef, ClaimedJob
from server.engine.ownership import Ownership
from server.engine.queues import Queues
from server.engine.registry import Registry, RunningEntry
from server.engine.slots import SlotBook

HANDLER = 7


class Broker:
    """Takes what it is told to take."""

    def __init__(self) -> None:
        self.there = True
        self.published: list[ClaimedJob] = []

    def takes(self, handler_id: int) -> bool:
        return self.there

    def publish(self, handler_id: int, jobs: Sequence[ClaimedJob]) -> bool:
        self.published.extend(jobs)
        return self.there


class Bench:
    """A node that serves 2 of 4 shards."""

    def __init__(self) -> None:
        self.slots = SlotBook(silence_s=1.0)
        self.registry = Registry()
        ownership = Ownership([0, 0, 1, 1])
        ownership.add(0, 1)
        ownership.add(1, 1)
        self.woken = 0
        self.queues = Queues(slots=self.slots, registry=self.registry, ownership=ownership, wake=self._wake)
        self.broker = Broker()
        self.queues.broker = self.broker

    def _wake(self) -> None:
        self.woken += 1

    def run(self, number: int, worker_id: int = queue_lease(HANDLER)) -> RunningEntry:
        entry = RunningEntry(
            ref=AttemptRef(number << 12, 1),
            shard=0,
            handler_id=HANDLER,
            worker_id=worker_id,
            claim_epoch=1,
            timeout_at=datetime(2030, 1, 1, tzinfo=UTC),
            session_id=0,
        )
        self.registry.add(entry)
        return entry


def test_a_queue_has_the_nodes_share_of_the_cap_less_what_runs() -> None:
    bench = Bench()
    bench.queues.open(HANDLER, 10)
    assert bench.slots.free(HANDLER) == 5
    bench.run(1)
    bench.run(2, worker_id=3)
    assert bench.slots.free(HANDLER) == 3
    assert len(bench.slots.reserve(HANDLER, 10)) == 3
    assert bench.slots.free(HANDLER) == 0


def test_what_was_handed_over_counts_once() -> None:
    bench = Bench()
    bench.queues.open(HANDLER, 10)
    taken = bench.slots.reserve(HANDLER, 2)
    entry = bench.run(1)
    bench.slots.hand_over(taken[0], HANDLER, entry.ref)
    taken[0].settle()
    bench.slots.release(HANDLER, taken[1:])
    assert bench.slots.free(HANDLER) == 4
    bench.registry.remove(entry.ref)
    assert bench.slots.free(HANDLER) == 5


def test_there_is_no_room_without_the_broker() -> None:
    bench = Bench()
    bench.queues.open(HANDLER, 10)
    bench.broker.there = False
    assert bench.slots.free(HANDLER) == 0
    assert bench.slots.view(HANDLER) == HandlerView(workers=0, slots=0, free=0, published=True)


def test_a_closed_queue_leaves_the_jobs_to_sessions() -> None:
    bench = Bench()
    bench.queues.open(HANDLER, 10)
    bench.queues.close(HANDLER)
    assert bench.slots.free(HANDLER) == 0
    assert bench.slots.view(HANDLER) == HandlerView(workers=0, slots=0, free=0)


def test_the_claimer_is_woken_when_there_is_room_again() -> None:
    bench = Bench()
    bench.queues.attempt_ended(HANDLER)
    assert bench.woken == 0
    bench.queues.open(HANDLER, 10)
    bench.queues.attempt_ended(HANDLER)
    assert bench.woken == 2


def test_the_lease_of_a_topic_is_always_heard() -> None:
    bench = Bench()
    assert bench.slots.heard(queue_lease(HANDLER))
    assert not bench.slots.heard(HANDLER)
