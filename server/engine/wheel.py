"""A hierarchical timing wheel: many timers, constant work for each, whatever their number and distance.

Source: G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987, scheme 7.

Model. Time is a whole number of ticks. A slot of level 0 is one tick; a slot of level k is exactly the wheel of level
k-1 below it: 256 slots at the bottom, 64 at each of the five levels above. A wheel keeps a bitmask of its occupied
slots, so empty time costs nothing however long it is. With ticks of a millisecond the levels reach 256 ms, 16 s,
17 min, 19 h, 50 days and 8.7 years; what lies beyond waits in the overflow level, a heap of stretches of 8.7 years.

Departure from the paper: wheels stand at absolute ticks instead of turning with the clock, and a slot becomes a wheel
of the level below (its timers cascade) when somebody looks into it, not when time reaches it. Thus the exact earliest
tick is known at any moment, timers in the past need no special case, and the wheel has no notion of "now" which a
clock that jumps could spoil.

Costs. A timer moves down at most six times, always downwards, and each look touches one slot per level. So insert,
cancel, next_tick and the drain of one timer are O(1) amortised, O(6) to be exact; only the overflow level adds the
logarithm of the number of its stretches. A drain after a jump of days costs what is drained, not the days. Memory is
O(1) per timer, at most six wheels each, and `capacity` bounds the timers.

Clock jumps. `advance` drains what its argument says is due. Forwards, everything passed comes out in order; backwards,
the timers left are later still than the smaller instant, hence nothing fires early, and nothing fires twice because a
drained timer is gone.

To keep the promise that nothing is early, round due times up to ticks and the present down.

Not thread-safe: one event loop owns a wheel.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_BITS: Final = (8, 6, 6, 6, 6, 6)
_SHIFTS: Final = (0, *accumulate(_BITS))
_OVERFLOW: Final = len(_BITS)
_SLOT_MASKS: Final = tuple((1 << bits) - 1 for bits in _BITS)
# Stale stretches that the overflow heap may hold before it is rebuilt, on top of as many as there are live ones.
_HEAP_SLACK: Final = 16


class WheelFull(Exception):
    """The wheel holds `capacity` timers and takes no further key; nothing was changed."""

    def __init__(self, capacity: int) -> None:
        super().__init__(f"the timer wheel is full: it holds its capacity of {capacity} timers")
        self.capacity = capacity


class TimerWheel(Generic[T]):
    """Timers by key, each with the tick at which it is due and a value; see the module for model and costs.

    `capacity` is the greatest number of timers held at a time, at least 1. `visits` counts the slots looked into and
    the timers moved since the start: the cost of the wheel in numbers, for tests and metrics.
    """

    def __init__(self, *, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity: Final = capacity
        self.visits = 0
        self._timers: dict[Hashable, tuple[int, T]] = {}
        # Per level: the timers of each occupied slot that is not a wheel itself, in order of insertion. A slot is named
        # by its absolute number, tick >> shift.
        self._slots: list[dict[int, dict[Hashable, int]]] = [{} for _ in range(_OVERFLOW + 1)]
        # Per level: the occupancy of each wheel that exists, named by the slot above that it replaces. No wheel is
        # empty. A timer is in the lowest wheel that exists for its tick.
        self._wheels: list[dict[int, int]] = [{} for _ in range(_OVERFLOW)]
        self._downwards = list(zip(range(_OVERFLOW), _BITS, self._wheels, strict=True))[::-1]
        self._stretches: list[int] = []
        self._earliest: int | None = None

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._timers

    def tick_of(self, key: Hashable) -> int | None:
        """Return the tick at which the timer `key` is due, or None if there is none."""
        timer = self._timers.get(key)
        return None if timer is None else timer[0]

    def insert(self, key: Hashable, at_tick: int, value: T) -> None:
        """Set the timer `key` to `at_tick`; a key that exists moves, and counts as inserted now.

        A tick in the past is due at the next `advance`. Raise WheelFull if the key is new and the wheel at capacity.
        """
        timer = self._timers.get(key)
        if timer is not None:
            self._remove(key, timer[0])
        elif len(self._timers) >= self.capacity:
            raise WheelFull(self.capacity)
        level = self._level_of(at_tick)
        number = at_tick >> _SHIFTS[level]
        slot = self._slots[level].get(number)
        if slot is not None:
            slot[key] = at_tick
        else:
            self._slots[level][number] = {key: at_tick}
            if level == _OVERFLOW:
                heappush(self._stretches, number)
            else:
                self._wheels[level][number >> _BITS[level]] |= 1 << (number & _SLOT_MASKS[level])
        if not self._timers or (self._earliest is not None and at_tick < self._earliest):
            self._earliest = at_tick
        self._timers[key] = (at_tick, value)

    def cancel(self, key: Hashable) -> bool:
        """Remove the timer `key`; tell whether there was one."""
        timer = self._timers.pop(key, None)
        if timer is None:
            return False
        self._remove(key, timer[0])
        return True

    def next_tick(self) -> int | None:
        """Return the exact tick of the earliest timer, or None if there is none."""
        if self._earliest is None:
            self._earliest = self._find_earliest()
        return self._earliest

    def advance(self, now_tick: int) -> list[T]:
        """Remove all timers due at or before `now_tick` and return their values by (tick, order of insertion)."""
        due: list[T] = []
        timers, slots, wheels = self._timers, self._slots[0], self._wheels[0]
        if self._earliest is not None and self._earliest > now_tick:
            return due
        while (first := self._find_earliest()) is not None and first <= now_tick:
            wheel = first >> _BITS[0]
            base = wheel << _BITS[0]
            occupied = wheels[wheel]
            while occupied:
                lowest = occupied & -occupied
                tick = base + lowest.bit_length() - 1
                if tick > now_tick:
                    break
                due += [timers.pop(key)[1] for key in slots.pop(tick)]
                occupied ^= lowest
                self.visits += 1
            if occupied:
                wheels[wheel] = occupied
            else:
                del wheels[wheel]
                self._vacate(1, wheel)
        self._earliest = first
        return due

    def _level_of(self, tick: int) -> int:
        """The level whose wheel takes a timer of this tick: the lowest one that exists, else the overflow."""
        for level, wheels in enumerate(self._wheels):
            if tick >> _SHIFTS[level + 1] in wheels:
                return level
        return _OVERFLOW

    def _remove(self, key: Hashable, tick: int) -> None:
        if tick == self._earliest:
            self._earliest = None
        level = self._level_of(tick)
        number = tick >> _SHIFTS[level]
        slot = self._slots[level][number]
        del slot[key]
        self.visits += 1
        if not slot:
            del self._slots[level][number]
            self._vacate(level, number)

    def _vacate(self, level: int, number: int) -> None:
        """Note that a slot of `level` has become empty, and with it, may be, the wheels above."""
        while level < _OVERFLOW:
            self.visits += 1
            wheel = number >> _BITS[level]
            occupied = self._wheels[level][wheel] & ~(1 << (number & _SLOT_MASKS[level]))
            if occupied:
                self._wheels[level][wheel] = occupied
                return
            del self._wheels[level][wheel]
            level, number = level + 1, wheel
        live = len(self._slots[_OVERFLOW]) + len(self._wheels[-1])
        if len(self._stretches) > 2 * live + _HEAP_SLACK:
            self._stretches = [*self._slots[_OVERFLOW], *self._wheels[-1]]
            heapify(self._stretches)

    def _find_earliest(self) -> int | None:
        """Walk down to the earliest timer; slots met on the way become wheels, so it ends in a slot of level 0."""
        stretches = self._stretches
        while stretches and stretches[0] not in self._wheels[-1] and stretches[0] not in self._slots[_OVERFLOW]:
            heappop(stretches)
        if not stretches:
            return None
        number = stretches[0]
        for level, bits, wheels in self._downwards:
            occupied = wheels.get(number) or self._cascade(level, number)
            number = (number << bits) + (occupied & -occupied).bit_length() - 1
        self.visits += _OVERFLOW
        return number

    def _cascade(self, level: int, number: int) -> int:
        """Turn slot `number` of the level above into a wheel of `level`; return its occupancy."""
        timers = self._slots[level + 1].pop(number)
        slots, shift, mask, occupied = self._slots[level], _SHIFTS[level], _SLOT_MASKS[level], 0
        for key, tick in timers.items():
            lower = tick >> shift
            if lower in slots:
                slots[lower][key] = tick
            else:
                slots[lower] = {key: tick}
                occupied |= 1 << (lower & mask)
        self.visits += 1 + len(timers)
        self._wheels[level][number] = occupied
        return occupied
