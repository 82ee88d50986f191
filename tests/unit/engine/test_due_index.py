"""What a node knows of due work, against a model of the database."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from server.domain.due import NO_BOUND, DueJob
from server.engine import due_index
from server.engine.clock import tick_of
from server.engine.due_index import HORIZON_MS, PEEK_LIMIT, READY_LIMIT, DueIndex, Take
from tests.support.thoroughness import examples

START = datetime(2026, 7, 1, tzinfo=UTC)
NOW = tick_of(START)
SECOND = timedelta(seconds=1)
HANDLERS = (1, 2)
SHARDS = (0, 1, 2)
HOUR_MS = 3_600_000


def at(ms: int) -> datetime:
    return START + timedelta(milliseconds=ms)


def job(job_id: int, ms: int = 0, *, priority: int = 3, shard: int = 0, handler: int = 1) -> DueJob:
    return DueJob(priority, at(ms), job_id, shard, handler)


def taken(takes: dict[int, Take]) -> list[DueJob]:
    return sorted(one for take in takes.values() for one in take.jobs)


# Many ties in time, some of it in the past, some beyond the horizon.
spans = st.one_of(st.integers(-20, 20), st.integers(-5, 5).map(lambda n: n * 1000), st.integers(0, 3 * HORIZON_MS))


def drawn(number: int, ms: int, priority: int, shard: int, handler: int) -> DueJob:
    """A job whose id tells everything about it but its time: it may be told of again with another one."""
    return job(
        number * 1000 + shard * 100 + handler * 10 + priority, ms, priority=priority, shard=shard, handler=handler
    )


jobs = st.builds(
    drawn, st.integers(1, 30), spans, st.integers(1, 5), st.sampled_from(SHARDS), st.sampled_from(HANDLERS)
)
job_lists = st.lists(jobs, max_size=15, unique_by=lambda one: one.job_id)


@given(told=job_lists, now=spans, counts=st.lists(st.integers(0, 20), max_size=12))
def test_what_is_due_is_taken_in_order(told: list[DueJob], now: int, counts: list[int]) -> None:
    """By handler, the most urgent first, whatever shard it lies in; nothing early, nothing twice, nothing lost."""
    index = DueIndex()
    index.add(told, NOW - 10 * HOUR_MS)
    index.advance(NOW + now)
    for pair in index.pairs_to_peek():
        # Jobs that lie too far ahead to be remembered one by one.
        found = [one for one in told if (one.shard, one.handler_id) == pair]
        index.peeked([pair], sorted(found, key=lambda one: (one.priority, one.due_at)), NOW + now)
    for handler in HANDLERS:
        due = sorted(one for one in told if one.handler_id == handler and one.due_at <= at(now))
        for count in [*counts, len(told)]:
            takes = index.take(handler, count, ())
            assert taken(takes) == due[:count]
            assert all(one.shard == shard for shard, take in takes.items() for one in take.jobs)
            assert not any(take.extra for take in takes.values())
            due = due[count:]
        assert handler not in index.handlers_with_work()


@given(told=job_lists, busy=st.sets(st.sampled_from(SHARDS)), count=st.integers(1, 40))
def test_jobs_of_busy_shards_keep_their_turn(told: list[DueJob], busy: set[int], count: int) -> None:
    """They use up the count, so that less urgent ones of other shards do not pass them, and are there the next time."""
    index = DueIndex()
    now = NOW + 4 * HORIZON_MS
    index.add(told, now)
    due = sorted(one for one in told if one.handler_id == 1)
    assert taken(index.take(1, count, busy)) == [one for one in due[:count] if one.shard not in busy]
    left = [one for one in due[:count] if one.shard in busy] + due[count:]
    assert taken(index.take(1, len(told), ())) == left


def test_a_job_told_again_is_known_once() -> None:
    index = DueIndex()
    index.add([job(1, 5), job(1, 5)], NOW)
    index.add([job(1, 5)], NOW)
    assert len(index) == 1
    index.add([job(1, 0)], NOW)
    index.advance(NOW + 100)
    assert taken(index.take(1, 10, ())) == [job(1, 0)]
    assert index.take(1, 10, ()) == {}


def test_a_due_time_that_moves_later_is_followed() -> None:
    index = DueIndex()
    index.add([job(1, 0)], NOW)
    index.add([job(1, 50)], NOW)
    assert index.take(1, 10, ()) == {}
    assert index.next_tick() == NOW + 50
    index.advance(NOW + 50)
    assert taken(index.take(1, 10, ())) == [job(1, 50)]


def test_nothing_is_due_before_its_instant() -> None:
    index = DueIndex()
    index.add([DueJob(3, START + timedelta(microseconds=1), 1, 0, 1)], NOW)
    index.advance(NOW)
    assert index.handlers_with_work() == []
    index.advance(NOW + 1)
    assert index.handlers_with_work() == [1]


def test_a_claim_that_was_not_made_is_undone() -> None:
    index = DueIndex()
    told = [job(1), job(2, priority=1), job(3, shard=1)]
    index.add(told, NOW)
    takes = index.take(1, 10, ())
    for shard, take in takes.items():
        index.put_back(shard, 1, take)
    assert taken(index.take(1, 10, ())) == sorted(told)


def test_bound_follows_what_was_claimed_and_falls_on_a_nudge() -> None:
    index = DueIndex()
    index.add([job(1, -30), job(2, -20)], NOW)
    [take] = index.take(1, 10, ()).values()
    index.claimed(0, 1, take, [job(1, -30), job(2, -20)], cut=False, now=START)
    assert index.pair(0, 1).bounds == [NO_BOUND, NO_BOUND, at(-20), NO_BOUND, NO_BOUND]
    index.add([job(3, -25)], NOW)
    assert index.pair(0, 1).bounds[2] == at(-25)


def test_bound_does_not_pass_a_job_that_was_told_of_while_a_claim_was_under_way() -> None:
    """Its due time may lie before that of the claimed one: a slow commit, or an attempt given back."""
    index = DueIndex()
    index.add([job(2, -10)], NOW)
    [take] = index.take(1, 1, ()).values()
    index.add([job(1, -20)], NOW)
    index.claimed(0, 1, take, [job(2, -10)], cut=False, now=START)
    assert taken(index.take(1, 1, ())) == [job(1, -20)]
    assert index.pair(0, 1).bounds[2] <= at(-20)


def test_bound_does_not_pass_a_job_that_somebody_has_locked() -> None:
    index = DueIndex()
    index.add([job(1, -20), job(2, -10)], NOW)
    [take] = index.take(1, 1, ()).values()
    index.claimed(0, 1, take, [job(2, -10)], cut=False, now=START)
    assert taken(index.take(1, 1, ())) == [job(1, -20)]
    assert index.pair(0, 1).bounds[2] <= at(-20)


@pytest.mark.parametrize("behind", [False, True])
def test_every_sweep_brings_the_bound_down_to_what_it_finds(behind: bool) -> None:
    index = DueIndex()
    index.add([job(1, -10)], NOW)
    [take] = index.take(1, 1, ()).values()
    index.claimed(0, 1, take, [job(1, -10)], cut=False, now=START)
    if behind:
        index.add([job(100 + n, -5) for n in range(READY_LIMIT + 1)], NOW)
        assert index.pair(0, 1).behind
    index.swept([job(2, -20)], NOW)
    assert index.pair(0, 1).bounds[2] == at(-20)


def test_a_sweep_finds_that_a_job_is_due_earlier_than_was_known() -> None:
    """The nudge of a job that was made due at once was lost."""
    index = DueIndex()
    index.add([job(1, 30_000)], NOW)
    index.swept([job(1, 0)], NOW)
    assert taken(index.take(1, 1, ())) == [job(1, 0)]


def test_a_sweep_asks_for_a_peek_of_what_is_new_only() -> None:
    index = DueIndex()
    index.swept([job(1), job(2, 50, shard=1), job(3, 10 * HORIZON_MS, shard=2)], NOW)
    assert sorted(index.pairs_to_peek()) == [(0, 1), (1, 1), (2, 1)]
    index.peeked([(0, 1), (1, 1), (2, 1)], [job(1), job(2, 50, shard=1), job(3, 10 * HORIZON_MS, shard=2)], NOW)
    index.swept([job(1), job(2, 50, shard=1), job(3, 10 * HORIZON_MS, shard=2)], NOW)
    assert index.pairs_to_peek() == []


def test_a_pair_is_peeked_once_at_a_time_and_again_if_asked_meanwhile() -> None:
    index = DueIndex()
    index.swept([job(1)], NOW)
    assert index.pairs_to_peek() == [(0, 1)]
    index.swept([job(2, -1, priority=1)], NOW)
    assert index.pairs_to_peek() == []
    index.peeked([(0, 1)], [job(1), job(2, -1, priority=1)], NOW)
    assert index.pairs_to_peek() == [(0, 1)]
    index.peek_failed([(0, 1)])
    index.swept([job(3, priority=2)], NOW)
    assert index.pairs_to_peek() == [(0, 1)]


def test_a_full_peek_of_due_jobs_leaves_the_pair_behind() -> None:
    index = DueIndex()
    found = [job(n, n - PEEK_LIMIT) for n in range(1, PEEK_LIMIT + 1)]
    index.peeked([(0, 1)], found, NOW)
    assert index.pair(0, 1).behind
    [take] = index.take(1, PEEK_LIMIT + 30, ()).values()
    assert (take.jobs, take.extra, take.count) == (found, 30, PEEK_LIMIT + 30)
    # A claim that was not filled says that there is no more; the pair is read again to be sure.
    index.claimed(0, 1, take, found, cut=False, now=START)
    assert not index.pair(0, 1).behind
    assert index.pairs_to_peek() == [(0, 1)]


def test_a_full_peek_of_future_jobs_is_continued_in_time() -> None:
    index = DueIndex()
    found = [job(n, n) for n in range(1, PEEK_LIMIT + 1)]
    index.peeked([(0, 1)], found, NOW)
    index.advance(NOW + PEEK_LIMIT - 1)
    assert index.pairs_to_peek() == []
    index.advance(NOW + PEEK_LIMIT)
    assert index.pairs_to_peek() == [(0, 1)]


def test_what_is_left_of_the_slots_goes_to_the_pairs_behind() -> None:
    index = DueIndex()
    for shard in (1, 2, 3):
        index.add([job(shard * 10_000 + n, shard=shard) for n in range(READY_LIMIT + 1)], NOW)
    assert len(taken(index.take(1, 3 * READY_LIMIT, ()))) == 3 * READY_LIMIT
    assert {shard: take.extra for shard, take in index.take(1, 8, (2,)).items()} == {1: 4, 3: 4}
    assert sum(take.extra for take in index.take(1, 1, ()).values()) == 1
    assert index.handlers_with_work() == [1]
    assert index.waiting(1) == 3 * PEEK_LIMIT


def test_without_progress_a_pair_is_not_read_again_at_once() -> None:
    """All that is due is locked by somebody else: reading and claiming in turn would spin."""
    index = DueIndex()
    index.add([job(n) for n in range(READY_LIMIT + 1)], NOW)
    [take] = index.take(1, READY_LIMIT + 5, ()).values()
    index.claimed(0, 1, take, [], cut=False, now=START, progress=False)
    assert index.pairs_to_peek() == []
    assert index.handlers_with_work() == []


def test_jobs_that_were_looked_for_too_early_wait_again() -> None:
    index = DueIndex()
    index.add([job(1, 5)], NOW + 10)
    [take] = index.take(1, 3, ()).values()
    index.claimed(0, 1, take, [], cut=False, now=at(2))
    assert index.take(1, 3, ()) == {}
    assert index.next_tick() == NOW + 5


def test_memory_is_bounded() -> None:
    index = DueIndex(capacity=100)
    index.add([job(n, 1 + n % 7000) for n in range(5000)], NOW)
    assert len(index) <= 100
    for n in range(20):
        index.add([job(10_000 + 1000 * n + k, -1, priority=1 + n % 5) for k in range(1000)], NOW)
    assert len(index) <= 100 + 5 * READY_LIMIT
    assert index.pair(0, 1).behind


def test_far_jobs_take_one_timer_for_each_pair() -> None:
    """A million jobs of the coming days do not displace those of the next seconds."""
    index = DueIndex(capacity=100)
    index.add([job(n, HORIZON_MS + 1 + n, shard=n % 3) for n in range(5000)], NOW)
    assert len(index) == 3
    index.add([job(10_000 + n, 50 + n) for n in range(90)], NOW)
    index.advance(NOW + 150)
    assert len(taken(index.take(1, 200, ()))) == 90


def test_far_jobs_are_read_shortly_before_their_time() -> None:
    index = DueIndex()
    far = job(1, 10 * HORIZON_MS)
    index.add([far], NOW)
    tick = index.next_tick()
    assert tick is not None
    assert tick_of(far.due_at) - 2000 <= tick < tick_of(far.due_at)
    index.advance(tick)
    assert index.handlers_with_work() == []
    assert index.pairs_to_peek() == [(0, 1)]
    index.peeked([(0, 1)], [far], tick)
    assert index.next_tick() == tick_of(far.due_at)
    index.advance(tick_of(far.due_at))
    assert taken(index.take(1, 1, ())) == [far]


@given(told=job_lists)
def test_a_forgotten_shard_leaves_nothing_behind(told: list[DueJob]) -> None:
    index = DueIndex()
    index.add(told, NOW)
    index.swept([job(10**7, shard=0)], NOW)
    index.forget_shard(0)
    assert not [key for key in index.pairs_to_peek() if key[0] == 0]
    index.advance(NOW + 10 * HORIZON_MS)
    assert not [key for key in index.pairs_to_peek() if key[0] == 0]
    left = [one for one in told if one.shard != 0 and one.due_at <= at(HORIZON_MS)]
    assert taken(index.take(1, 100, ())) == sorted(one for one in left if one.handler_id == 1)
    assert taken(index.take(2, 100, ())) == sorted(one for one in left if one.handler_id == 2)
    assert len(index) == 0


class KnowsWhatItIsTold(RuleBasedStateMachine):
    """Jobs come, are claimed and given back, with claims and nudges crossing; there is no sweep to repair anything.

    The model is the table of pending jobs. Small limits make pairs fall behind all the time. In the end, everything
    that is due has to be claimed by what the index itself asks for.
    """

    capacity = 10_000

    @initialize(told=job_lists)
    def begin(self, told: list[DueJob]) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(due_index, "PEEK_LIMIT", 3)
        self.patch.setattr(due_index, "READY_LIMIT", 5)
        self.index = DueIndex(capacity=self.capacity)
        self.table: dict[int, DueJob] = {}
        self.locked: set[int] = set()
        self.now = 0
        self.tell(told)

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        try:
            self.drain()
            self.now += 5 * HORIZON_MS
            self.drain()
            assert not self.table
        finally:
            self.patch.undo()

    def tell(self, told: Sequence[DueJob]) -> None:
        for one in told:
            self.table[one.job_id] = one
        self.index.add(told, NOW + self.now)

    @rule(told=job_lists)
    def submit(self, told: list[DueJob]) -> None:
        self.tell([replace(one, due_at=one.due_at + timedelta(milliseconds=self.now)) for one in told])

    @rule(ms=spans.map(abs))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.turn_peeks()

    @rule(handler=st.sampled_from(HANDLERS), count=st.integers(1, 9), before=job_lists, after=job_lists)
    def claim(self, handler: int, count: int, before: list[DueJob], after: list[DueJob]) -> None:
        """Jobs are told of between the decision and the statement, and between the statement and its answer."""
        self.index.advance(NOW + self.now)
        takes = self.index.take(handler, count, ())
        self.tell([one for one in before if one.job_id not in self.table])
        answers = [(shard, take, self.execute(shard, handler, take)) for shard, take in takes.items()]
        # What the statement has claimed cannot come back before its answer is known.
        claimed_ids = {one.job_id for _, _, claimed in answers for one in claimed}
        self.tell([one for one in after if one.job_id not in self.table and one.job_id not in claimed_ids])
        for shard, take, claimed in answers:
            progress = bool(claimed)
            self.index.claimed(shard, handler, take, claimed, cut=False, now=at(self.now), progress=progress)

    @rule(handler=st.sampled_from(HANDLERS), count=st.integers(1, 9))
    def fail_to_claim(self, handler: int, count: int) -> None:
        self.index.advance(NOW + self.now)
        for shard, take in self.index.take(handler, count, ()).items():
            self.index.put_back(shard, handler, take)

    def execute(self, shard: int, handler: int, take: Take) -> list[DueJob]:
        """What the statement does: exact ranges from the bounds on, in order, no more than there are slots."""
        found = sorted(self.in_range(shard, handler, at(self.now)))[: take.count]
        for one in found:
            del self.table[one.job_id]
        return found

    def in_range(self, shard: int, handler: int, until: datetime) -> Iterator[DueJob]:
        bounds = self.index.pair(shard, handler).bounds
        for one in self.table.values():
            if (one.shard, one.handler_id) == (shard, handler) and bounds[one.priority - 1] <= one.due_at <= until:
                yield one

    def turn_peeks(self) -> None:
        self.index.advance(NOW + self.now)
        for shard, handler in self.index.pairs_to_peek():
            found: list[DueJob] = []
            for priority in range(1, 6):
                every = [one for one in self.in_range(shard, handler, at(10**10)) if one.priority == priority]
                found += sorted(every)[: due_index.PEEK_LIMIT]
            self.index.peeked([(shard, handler)], found, NOW + self.now)

    def drain(self) -> None:
        for _ in range(3 * len(self.table) + 10):
            self.look_around()
            self.turn_peeks()
            for handler in self.index.handlers_with_work():
                self.claim_all(handler)
        assert not [one for one in self.table.values() if one.due_at <= at(self.now)]

    def look_around(self) -> None:
        """What happens from time to time without being asked for."""

    def claim_all(self, handler: int) -> None:
        for shard, take in self.index.take(handler, 4, ()).items():
            claimed = self.execute(shard, handler, take)
            self.index.claimed(shard, handler, take, claimed, cut=False, now=at(self.now), progress=bool(claimed))


class FindsWhatItIsNotTold(KnowsWhatItIsTold):
    """The same with lost nudges, locked rows and no room for timers: the sweep finds everything in the end."""

    capacity = 5

    @rule(untold=job_lists)
    def submit_silently(self, untold: list[DueJob]) -> None:
        self.table |= {one.job_id: one for one in untold}

    @rule(number=st.integers(0, 50))
    def lock(self, number: int) -> None:
        self.locked |= set(sorted(self.table)[number : number + 3])

    @rule(shard=st.sampled_from(SHARDS))
    def lose_a_shard_and_take_it_again(self, shard: int) -> None:
        self.index.forget_shard(shard)

    @rule()
    def look_around(self) -> None:
        first: dict[tuple[int, int, int], DueJob] = {}
        for one in sorted(self.table.values(), key=lambda one: (one.due_at, one.job_id)):
            first.setdefault((one.shard, one.handler_id, one.priority), one)
        self.index.swept(list(first.values()), NOW + self.now)

    def execute(self, shard: int, handler: int, take: Take) -> list[DueJob]:
        hidden = {job_id: self.table.pop(job_id) for job_id in self.locked & self.table.keys()}
        found = super().execute(shard, handler, take)
        self.table |= hidden
        return found

    def drain(self) -> None:
        self.locked.clear()
        super().drain()


def machine(kind: type[KnowsWhatItIsTold]) -> Any:
    case = kind.TestCase
    case.settings = settings(max_examples=examples(30), stateful_step_count=12, deadline=None)
    return case


TestKnowsWhatItIsTold = machine(KnowsWhatItIsTold)
TestFindsWhatItIsNotTold = machine(FindsWhatItIsNotTold)
