"""The checker finds what is wrong, by the shortest way, and what is stuck."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.checker import Exploration, Step, explore


@dataclass(frozen=True)
class Counter:
    """Counts up by one or two until `top`; `bad` is wrong, jumping onto `trap` is, and `sink` cannot be left."""

    top: int = 9
    bad: int = -1
    trap: int = -1
    sink: int = -1

    def initial(self) -> int:
        return 0

    def wrong(self, state: int) -> str:
        return "bad number" if state == self.bad else ""

    def is_good(self, state: int) -> bool:
        return state == self.top

    def steps(self, state: int) -> Iterator[Step[int]]:
        if state in (self.sink, self.top):
            return
        yield Step(("one",), state + 1)
        if state + 2 <= self.top:
            yield Step(("two", state), state + 2, "trapped" if state + 2 == self.trap else "")


def actions(explored: Exploration) -> list[tuple[object, ...]]:
    assert explored.violation is not None
    return list(explored.violation.actions)


def test_all_states_are_visited_once() -> None:
    explored = explore(Counter())
    assert (explored.states, explored.transitions, explored.violation) == (10, 17, None)


def test_a_wrong_state_is_found_by_the_shortest_way() -> None:
    explored = explore(Counter(bad=5))
    assert actions(explored) in ([("one",), ("two", 1), ("two", 3)], [("two", 0), ("one",), ("two", 3)],
                                 [("two", 0), ("two", 2), ("one",)])  # fmt: skip
    assert "bad number, after 3 steps" in str(explored.violation)


def test_a_wrong_beginning_is_found() -> None:
    assert actions(explore(Counter(bad=0))) == []


def test_a_wrong_step_is_found() -> None:
    assert actions(explore(Counter(trap=4)))[-1] == ("two", 2)


def test_a_state_without_a_way_to_anything_good_is_found() -> None:
    explored = explore(Counter(sink=3))
    assert explored.violation is not None
    assert explored.violation.wrong.startswith("stuck")
    assert len(explored.violation.actions) == 2
