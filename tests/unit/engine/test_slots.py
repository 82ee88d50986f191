"""Slots of workers: never more attempts on a session than its credit, and none lost, in whatever order things come."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from server.domain.handler import HandlerView
from server.domain.job import AttemptRef, ClaimedJob
from server.domain.outcome import AckStatus
from server.engine.ports import Epochs
from server.engine.slots import SlotBook, WorkerSession
from tests.support.thoroughness import examples

HANDLERS = (1, 2)


class NoLink:
    """A link that nothing is sent on; it remembers acknowledged credits."""

    def __init__(self) -> None:
        self.acked: list[int] = []

    def send_jobs(self, jobs: Sequence[ClaimedJob]) -> bool:
        return False

    def send_acks(self, acks: Sequence[tuple[AttemptRef, AckStatus]]) -> None: ...
    def send_cancels(self, cancels: Sequence[tuple[AttemptRef, str]]) -> None: ...
    def send_owner_hello(self, request_id: int, epochs: Epochs) -> None: ...
    def send_audit(self, request_id: int, refs: Sequence[AttemptRef]) -> None: ...
    def send_demand(self, waiting: Sequence[tuple[int, int]]) -> None: ...
    def send_drain(self, grace: timedelta) -> None: ...
    def send_credit_ack(self, sequence: int) -> None:
        self.acked.append(sequence)

    def close(self) -> None: ...


def session(worker_id: int, credit: dict[int, int], *, number: int = 1) -> WorkerSession:
    registered = dict.fromkeys(credit, 100)
    made = WorkerSession(number, worker_id, f"w{worker_id}", 1, NoLink(), registered)
    made.credit.update(credit)
    return made


def book_with(*credits: dict[int, int]) -> tuple[SlotBook, list[WorkerSession]]:
    book = SlotBook(silence_s=60)
    sessions = [session(number, credit) for number, credit in enumerate(credits, start=1)]
    for one in sessions:
        book.attach(one)
    return book, sessions


def counts(taken: list[WorkerSession]) -> dict[int, int]:
    return dict(Counter(one.worker_id for one in taken))


def test_slots_are_spread_over_the_workers_with_room() -> None:
    book, _ = book_with({1: 4}, {1: 4}, {1: 1}, {2: 9})
    assert book.free(1) == 9
    assert counts(book.reserve(1, 6)) in ({1: 3, 2: 2, 3: 1}, {1: 2, 2: 3, 3: 1})
    assert book.free(1) == 3
    assert sum(counts(book.reserve(1, 10)).values()) == 3
    assert book.reserve(1, 1) == []
    assert book.free(2) == 9


def test_a_single_slot_goes_to_the_worker_with_the_most_room() -> None:
    book, _ = book_with({1: 2}, {1: 5}, {1: 3})
    assert counts(book.reserve(1, 1)) == {2: 1}


def test_released_slots_are_free_again() -> None:
    book, _ = book_with({1: 3})
    taken = book.reserve(1, 3)
    book.release(1, taken[:2])
    assert book.free(1) == 2
    assert book.view(1) == HandlerView(workers=1, slots=3, free=2)


def test_a_result_frees_the_slot_once() -> None:
    book, [worker] = book_with({1: 2})
    [taken] = book.reserve(1, 1)
    ref = AttemptRef(7, 1)
    book.hand_over(taken, 1, ref)
    assert worker.outstanding == {ref: 1}
    for _ in range(3):
        book.returned(1, ref)
    book.returned(99, ref)
    assert book.free(1) == 2


def test_credit_that_shrinks_takes_no_slot_back_and_gives_none_out() -> None:
    book, [worker] = book_with({1: 5})
    taken = book.reserve(1, 4)
    for number, one in enumerate(taken):
        book.hand_over(one, 1, AttemptRef(number, 1))
    worker.credit[1] = 2
    assert (book.free(1), book.reserve(1, 3)) == (0, [])
    for number in range(3):
        book.returned(1, AttemptRef(number, 1))
    assert book.free(1) == 1


def test_a_smaller_credit_is_acknowledged_when_nothing_beyond_it_is_reserved() -> None:
    """A claim that is under way may still bring jobs for what is reserved; the worker must not give that away."""
    book, link = SlotBook(silence_s=60), NoLink()
    worker = WorkerSession(1, 1, "w", 1, link, {1: 9, 2: 9})
    book.attach(worker)
    worker.grant(1, {1: 4, 2: 1})
    assert link.acked == [1]
    taken = book.reserve(1, 3)
    worker.grant(2, {1: 3})
    assert link.acked == [1, 2]
    worker.grant(3, {1: 1, 2: 5})
    book.hand_over(taken[0], 1, AttemptRef(1, 1))
    book.release(1, taken[1:2])
    assert link.acked == [1, 2]
    # One more job is bound; it has to be sent before the acknowledgement.
    book.hand_over(taken[2], 1, AttemptRef(2, 1))
    assert link.acked == [1, 2]
    worker.settle()
    assert link.acked == [1, 2, 3]
    worker.settle()
    assert link.acked == [1, 2, 3]


def test_a_credit_that_grows_again_needs_no_wait() -> None:
    book, link = SlotBook(silence_s=60), NoLink()
    worker = WorkerSession(1, 1, "w", 1, link, {1: 9})
    book.attach(worker)
    worker.grant(1, {1: 3})
    book.reserve(1, 3)
    worker.grant(2, {1: 0})
    worker.grant(3, {1: 3})
    assert link.acked == [1, 3]


def test_what_came_on_an_older_session_does_not_use_the_credit_of_a_new_one() -> None:
    """The worker has taken it into account."""
    book, [old] = book_with({1: 3})
    for one in book.reserve(1, 2):
        book.hand_over(one, 1, AttemptRef(len(old.outstanding), 1))
    newer = session(1, {1: 1}, number=2)
    book.attach(newer)
    assert book.free(1) == 1
    book.returned(1, AttemptRef(0, 1))
    assert book.free(1) == 1


def test_slots_are_shared_with_other_nodes_while_the_credit_is_below_what_the_worker_has() -> None:
    book, [worker] = book_with({1: 3, 2: 0})
    assert book.shared(1)
    worker.credit[1] = 100
    assert not book.shared(1)
    assert book.shared(2)
    assert not book.shared(3)


def test_a_new_session_replaces_the_old_one_of_its_worker() -> None:
    book, [old] = book_with({1: 3})
    reserved = book.reserve(1, 1)
    newer = session(1, {1: 2}, number=2)
    assert book.attach(newer) is old
    assert (old.closed, newer.closed) == (True, False)
    assert book.sessions() == [newer]
    assert book.of_worker(1) is newer
    # What was reserved on the old one neither fills the new one nor comes back to it.
    book.hand_over(reserved[0], 1, AttemptRef(1, 1))
    book.returned(1, AttemptRef(1, 1))
    assert book.free(1) == 2
    # The end of the old stream is no reason to forget the new one.
    book.detach(old)
    assert book.of_worker(1) is newer
    assert book.handlers() == [1]


def test_a_session_that_left_gets_nothing() -> None:
    book, [worker] = book_with({1: 3})
    taken = book.reserve(1, 1)
    book.detach(worker)
    assert worker.closed
    assert (book.free(1), book.reserve(1, 1), book.handlers()) == (0, [], [])
    assert book.view(1) == HandlerView(workers=0, slots=0, free=0)
    book.release(1, taken)


def test_a_silent_worker_gets_nothing_and_is_not_heard() -> None:
    book = SlotBook(silence_s=10)
    loud, silent = session(1, {1: 2}), session(2, {1: 2})
    book.attach(loud)
    book.attach(silent)
    silent.heard_at = time.monotonic() - 11
    assert book.free(1) == 2
    assert counts(book.reserve(1, 4)) == {1: 2}
    assert (book.heard(1), book.heard(2), book.heard(3)) == (True, False, False)
    assert list(book.heard_workers()) == [1]
    silent.heard_at = time.monotonic()
    assert list(book.heard_workers()) == [1, 2]
    loud.heard_at = time.monotonic() - 4
    assert 4 <= book.heard_workers()[1] < 5


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_reserved_where_there_is_nothing(count: int) -> None:
    assert SlotBook(silence_s=1).reserve(1, count) == []
    book, _ = book_with({1: 0}, {2: 3})
    assert book.reserve(1, count) == []


workers = st.integers(1, 3)
handlers = st.sampled_from(HANDLERS)
amounts = st.integers(0, 4)


class NeverOverCredit(RuleBasedStateMachine):
    """Random reservations, hand-overs, results, credits and reconnects."""

    @initialize()
    def begin(self) -> None:
        self.book = SlotBook(silence_s=3600)
        self.numbers = 0
        self.sessions: list[WorkerSession] = []
        self.reserved: list[tuple[int, WorkerSession]] = []
        self.given: list[tuple[int, WorkerSession, AttemptRef]] = []
        self.over: dict[tuple[WorkerSession, int], int] = {}

    def next_ref(self) -> AttemptRef:
        self.numbers += 1
        return AttemptRef(self.numbers, 1)

    def allow(self, one: WorkerSession, handler: int, least: int) -> None:
        """A session may run more than its credit only as far as it did before the credit shrank."""
        self.over[one, handler] = max(one.credit.get(handler, 0), least)

    @rule(worker=workers, first=amounts, second=amounts)
    def connect(self, worker: int, first: int, second: int) -> None:
        self.numbers += 1
        one = session(worker, {1: first, 2: second}, number=self.numbers)
        older = self.book.attach(one)
        assert older is next((known for known in self.sessions if known.worker_id == worker), None)
        self.sessions = [known for known in self.sessions if known is not older] + [one]
        self.allow(one, 1, 0)
        self.allow(one, 2, 0)

    @rule(worker=workers)
    def disconnect(self, worker: int) -> None:
        for one in [known for known in self.sessions if known.worker_id == worker]:
            self.book.detach(one)
            self.sessions.remove(one)

    @rule(worker=workers, handler=handlers, amount=amounts)
    def credit(self, worker: int, handler: int, amount: int) -> None:
        one = self.book.of_worker(worker)
        if one is not None:
            self.numbers += 1
            one.grant(self.numbers, {handler: amount})
            self.allow(one, handler, one.used.get(handler, 0))

    @rule(handler=handlers, amount=st.integers(0, 8))
    def reserve(self, handler: int, amount: int) -> None:
        free = self.book.free(handler)
        taken = self.book.reserve(handler, amount)
        assert len(taken) == min(free, amount)
        assert self.book.free(handler) == free - len(taken)
        assert all(one in self.sessions for one in taken)
        self.reserved += [(handler, one) for one in taken]

    @rule(amount=amounts)
    def release(self, amount: int) -> None:
        for handler, one in self.reserved[:amount]:
            self.book.release(handler, [one])
        del self.reserved[:amount]

    @rule(amount=amounts)
    def hand_over(self, amount: int) -> None:
        for handler, one in self.reserved[:amount]:
            ref = self.next_ref()
            self.book.hand_over(one, handler, ref)
            self.given.append((handler, one, ref))
        del self.reserved[:amount]

    @rule(position=st.integers(0, 10))
    def result(self, position: int) -> None:
        if position < len(self.given):
            _, one, ref = self.given[position]
            self.book.returned(one.worker_id, ref)
            if one in self.sessions:
                del self.given[position]

    @invariant()
    def within_credit(self) -> None:
        if not hasattr(self, "book"):
            return
        assert self.book.sessions() == self.sessions
        for one in self.sessions:
            for handler in HANDLERS:
                reserved = sum(1 for kind, known in self.reserved if known is one and kind == handler)
                given = sum(1 for kind, known, _ in self.given if known is one and kind == handler)
                used = one.used.get(handler, 0)
                assert used == reserved + given <= self.over[one, handler]
                assert one.free(handler) == max(0, one.credit.get(handler, 0) - used)
                assert one.reserved.get(handler, 0) == reserved
                if reserved and one.unacked is None:
                    assert used <= one.credit[handler]
                assert sum(1 for kind in one.outstanding.values() if kind == handler) == given


TestNeverOverCredit: Any = NeverOverCredit.TestCase
TestNeverOverCredit.settings = settings(max_examples=examples(50), stateful_step_count=20, deadline=None)
