"""The timer wheel against a sorted list, its costs counted in slot visits, and its bounds on memory."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from server.engine.wheel import TimerWheel, WheelFull
from tests.support.thoroughness import examples

DAY = 86_400_000  # ticks of a millisecond
OVERFLOW = 1 << 38  # the first tick that level 5 does not reach from 0
LEVEL_SPANS = [1 << bits for bits in (0, 8, 14, 20, 26, 32, 38)]
CAPACITY = 40

keys = st.integers(0, 60)
# Every level, both sides of each boundary, the past, and the overflow level with several stretches in it.
distances = st.one_of(
    st.integers(-300, 600),
    st.builds(lambda span, times, off: span * times + off, st.sampled_from(LEVEL_SPANS), st.integers(-2, 70),
              st.integers(-2, 2)),
    st.integers(-OVERFLOW * 4, OVERFLOW * 4),
)  # fmt: skip


@dataclass
class Expected:
    tick: int
    inserted: int
    value: str


class WheelAgainstSortedList(RuleBasedStateMachine):
    """Random inserts, moves, cancels and advances; the model is a dict that is sorted whenever it is asked."""

    @initialize(start=st.sampled_from([0, -1, 255, OVERFLOW - 3, 1_785_000_000_000]))
    def begin(self, start: int) -> None:
        self.wheel: TimerWheel[str] = TimerWheel(capacity=CAPACITY)
        self.expected: dict[int, Expected] = {}
        self.now = start
        self.count = 0

    @rule(timers=st.lists(st.tuples(keys, distances), min_size=1, max_size=12))
    def insert_several(self, timers: list[tuple[int, int]]) -> None:
        for key, distance in timers:
            self.insert(key, distance)

    def insert(self, key: int, distance: int) -> None:
        self.count += 1
        timer = Expected(self.now + distance, self.count, f"value {self.count}")
        if key not in self.expected and len(self.expected) == CAPACITY:
            with pytest.raises(WheelFull) as caught:
                self.wheel.insert(key, timer.tick, timer.value)
            assert caught.value.capacity == CAPACITY
        else:
            self.wheel.insert(key, timer.tick, timer.value)
            self.expected[key] = timer

    @rule(key=keys)
    def insert_at_a_tick_in_use(self, key: int) -> None:
        if self.expected and (key in self.expected or len(self.expected) < CAPACITY):
            self.count += 1
            tick = next(iter(self.expected.values())).tick
            timer = Expected(tick, self.count, f"value {self.count}")
            self.wheel.insert(key, timer.tick, timer.value)
            self.expected[key] = timer

    @rule(key=keys, off=st.integers(-3, 3))
    def insert_near_the_earliest(self, key: int, off: int) -> None:
        earliest = self.wheel.next_tick()
        if earliest is not None:
            self.insert(key, earliest + off - self.now)
            self.ask_for_the_earliest()

    @rule(key=keys)
    def cancel(self, key: int) -> None:
        assert self.wheel.cancel(key) is (self.expected.pop(key, None) is not None)

    @rule()
    def cancel_the_earliest(self) -> None:
        if self.expected:
            key = min(self.expected, key=lambda key: self.expected[key].tick)
            del self.expected[key]
            assert self.wheel.cancel(key)

    @rule(distance=distances)
    def jump(self, distance: int) -> None:
        """Any distance, backwards too: what comes out is what the list says, whatever was said before."""
        self.advance_to(self.now + distance)

    @rule(off=st.integers(-1, 1))
    def advance_to_the_edge_of_the_earliest(self, off: int) -> None:
        if self.expected:
            self.advance_to(min(timer.tick for timer in self.expected.values()) + off)

    def advance_to(self, now: int) -> None:
        self.now = now
        due = {key: timer for key, timer in self.expected.items() if timer.tick <= now}
        in_order = sorted(due.values(), key=lambda timer: (timer.tick, timer.inserted))
        assert self.wheel.advance(now) == [timer.value for timer in in_order]
        for key in due:
            del self.expected[key]

    @rule()
    def ask_for_the_earliest(self) -> None:
        assert self.wheel.next_tick() == min((timer.tick for timer in self.expected.values()), default=None)

    @invariant()
    def holds_the_same_timers(self) -> None:
        assert len(self.wheel) == len(self.expected)
        for key, timer in self.expected.items():
            assert key in self.wheel
            assert self.wheel.tick_of(key) == timer.tick

    @invariant()
    def memory_is_bounded_by_the_timers(self) -> None:
        assert_memory_is_bounded(self.wheel)


TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
TestWheelAgainstSortedList.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)


def assert_memory_is_bounded(wheel: TimerWheel[str]) -> None:
    assert all(timers for slots in wheel._slots for timers in slots.values())
    assert sum(len(timers) for slots in wheel._slots for timers in slots.values()) == len(wheel)
    assert all(occupied for wheels in wheel._wheels for occupied in wheels.values())
    assert sum(map(len, wheel._wheels)) <= 6 * len(wheel)
    assert len(wheel._stretches) <= 2 * len(wheel) + 17


def filled(ticks: list[int]) -> TimerWheel[str]:
    wheel: TimerWheel[str] = TimerWheel(capacity=len(ticks))
    for number, tick in enumerate(ticks):
        wheel.insert(number, tick, str(tick))
    return wheel


def test_nothing_fires_early_or_twice_when_the_clock_jumps() -> None:
    wheel = filled([100, 200, 30 * DAY, OVERFLOW * 3])
    assert wheel.advance(99) == []
    assert wheel.advance(150) == ["100"]
    assert wheel.advance(120) == []
    assert wheel.advance(-5 * DAY) == []
    assert wheel.advance(150) == []
    assert wheel.advance(31 * DAY) == ["200", str(30 * DAY)]
    assert wheel.advance(199) == []
    assert wheel.next_tick() == OVERFLOW * 3
    assert wheel.advance(OVERFLOW * 3 - 1) == []
    assert wheel.advance(OVERFLOW * 3) == [str(OVERFLOW * 3)]
    assert wheel.next_tick() is None
    assert len(wheel) == 0


def test_a_timer_in_the_past_fires_at_the_next_advance_before_the_present_ones() -> None:
    wheel = filled([1000, 2000])
    assert wheel.advance(999) == []
    assert wheel.cancel(1)
    wheel.insert("late", 10, "10")
    assert wheel.next_tick() == 10
    assert wheel.advance(1000) == ["10", "1000"]


def test_timers_of_one_tick_keep_their_order_of_insertion_through_every_level() -> None:
    wheel: TimerWheel[str] = TimerWheel(capacity=100)
    tick = OVERFLOW + 12_345
    wheel.insert("a", tick, "a")
    for level, distance in enumerate(reversed(LEVEL_SPANS[:-1])):
        # Looking at a timer a little before the tick cascades one level further down; the next one joins there.
        wheel.insert("scout", tick - distance, "scout")
        assert wheel.next_tick() == tick - distance
        wheel.insert(level, tick, str(level))
        assert wheel.cancel("scout")
    wheel.insert("a", tick, "moved to the end")
    assert wheel.advance(tick) == ["0", "1", "2", "3", "4", "5", "moved to the end"]


def test_a_full_wheel_refuses_new_keys_only_and_stays_as_it_was() -> None:
    wheel: TimerWheel[str] = TimerWheel(capacity=2)
    wheel.insert("a", 1, "a")
    wheel.insert("b", 2, "b")
    with pytest.raises(WheelFull, match="capacity of 2"):
        wheel.insert("c", 0, "c")
    assert wheel.next_tick() == 1
    wheel.insert("a", 3, "a later")
    assert wheel.advance(5) == ["b", "a later"]
    wheel.insert("c", 6, "c")
    assert len(wheel) == 1


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        TimerWheel[str](capacity=0)


def spread(rnd: random.Random) -> int:
    return rnd.randrange(30 * DAY)


def one_far_slot(rnd: random.Random) -> int:
    return 20 * DAY + rnd.randrange(DAY // 4)


def overflow(rnd: random.Random) -> int:
    return OVERFLOW * 2 + rnd.randrange(OVERFLOW)


@pytest.mark.parametrize("tick", [spread, one_far_slot, overflow])
@pytest.mark.parametrize("size", [500, 20_000])
def test_the_cost_of_an_operation_does_not_grow_with_the_number_of_timers(
    size: int, tick: Callable[[random.Random], int]
) -> None:
    """Counted in slots visited and timers moved, and worst for a lazy wheel: each earliest timer is cancelled."""
    rnd = random.Random(size)
    wheel = filled([tick(rnd) for _ in range(size)])
    keys = sorted(range(size), key=lambda key: wheel.tick_of(key) or 0)
    operations = size
    for key in keys[: size // 2]:
        assert wheel.next_tick() == wheel.tick_of(key)
        assert wheel.cancel(key)
        wheel.insert(key, tick(rnd) + OVERFLOW * 4, "again")
        operations += 3
    assert len(wheel.advance(OVERFLOW * 8)) == size
    operations += size
    # At most six moves down per insert; a look, a removal and a drain touch one slot per level.
    assert wheel.visits <= 12 * operations


def test_a_jump_of_years_costs_what_is_drained_and_not_the_time_passed() -> None:
    wheel = filled([n * 40 * DAY for n in range(100)])
    before = wheel.visits
    assert wheel.advance(100 * 365 * DAY) == [str(n * 40 * DAY) for n in range(100)]
    assert wheel.visits - before <= 100 * 25
    before = wheel.visits
    assert wheel.advance(200 * 365 * DAY) == []
    assert wheel.visits - before == 0


def test_stretches_of_the_overflow_level_keep_their_order_while_most_are_cancelled() -> None:
    rnd = random.Random(11)
    numbers = rnd.sample(range(1000), 400)
    wheel = filled([number * OVERFLOW for number in numbers])
    kept = set(rnd.sample(range(400), 20))
    for key in range(400):
        assert key in kept or wheel.cancel(key)
    assert_memory_is_bounded(wheel)
    expected = sorted(numbers[key] * OVERFLOW for key in kept)
    for tick in expected:
        assert wheel.next_tick() == tick
        assert wheel.advance(tick) == [str(tick)]


def test_insert_and_cancel_in_a_circle_leave_nothing_behind() -> None:
    wheel: TimerWheel[str] = TimerWheel(capacity=10)
    rnd = random.Random(7)
    for _ in range(5000):
        wheel.insert("far", rnd.randrange(OVERFLOW * 1000), "far")
        wheel.next_tick()
        assert_memory_is_bounded(wheel)
        assert wheel.cancel("far")
        assert_memory_is_bounded(wheel)
    assert len(wheel) == 0
