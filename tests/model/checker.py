"""Visits every state that a protocol model can reach, breadth first, so that the first violation found has the shortest
trace.

A model is pure: states are hashable values, `steps` lists everything that can happen next. Two kinds of statement are
checked. Safety: no state, and no step, is wrong. Nothing lost: from every reachable state a good one can still be
reached; a state from which none can is a job, or a shard, that is stuck for ever. What an adversary does (stalls,
losses, ends of sessions) is to be bounded by the model, so that it runs out, and what heals is not.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
Action = tuple[object, ...]

MAX_STATES = 1_000_000


class Step(NamedTuple, Generic[S]):
    """Something that can happen: `action` leads to `state`; `wrong` says what is wrong with doing so, "" if nothing."""

    action: Action
    state: S
    wrong: str = ""


class Model(Protocol[S]):
    """A protocol: where it begins, what can happen, and what must never or must always be possible."""

    def initial(self) -> S: ...

    def steps(self, state: S) -> Iterable[Step[S]]: ...

    def wrong(self, state: S) -> str:
        """What is wrong with a state by itself; "" if nothing is."""
        ...

    def is_good(self, state: S) -> bool:
        """Whether everything is well and done: what must stay within reach."""
        ...


@dataclass(frozen=True, kw_only=True)
class Violation:
    """What is wrong, and the shortest way there."""

    wrong: str
    trace: tuple[tuple[Action, object], ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The way without the states."""
        return tuple(action for action, _ in self.trace)

    def __str__(self) -> str:
        lines = [f"{self.wrong}, after {len(self.trace)} steps:"]
        lines += [f"  {number}. {_words(action)}" for number, (action, _) in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"  state: {self.trace[-1][1] if self.trace else 'initial'}"])


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What was visited; `violation` is None if the model holds."""

    states: int
    transitions: int
    violation: Violation | None


def explore(model: Model[S]) -> Exploration:
    """Visit every reachable state, or stop at the first violation."""
    start = model.initial()
    origins: dict[S, tuple[S, Action] | None] = {start: None}
    before: dict[S, list[S]] = {}
    queue = deque([start])
    transitions = 0

    def found(wrong: str, state: S, last: tuple[tuple[Action, object], ...] = ()) -> Exploration:
        violation = Violation(wrong=wrong, trace=(*_trace(origins, state), *last))
        return Exploration(states=len(origins), transitions=transitions, violation=violation)

    while queue:
        state = queue.popleft()
        if wrong := model.wrong(state):
            return found(wrong, state)
        for action, after, wrong in model.steps(state):
            transitions += 1
            if wrong:
                return found(wrong, state, ((action, after),))
            if after not in origins:
                origins[after] = (state, action)
                queue.append(after)
            before.setdefault(after, []).append(state)
        if len(origins) > MAX_STATES:
            raise RuntimeError(f"more than {MAX_STATES} states: the model is not bounded")
    saved = _reaching({state for state in origins if model.is_good(state)}, before)
    # In the order of the visits: the first one is among those nearest to the beginning.
    for state in origins:
        if state not in saved:
            return found("stuck: nothing good can be reached any more", state)
    return Exploration(states=len(origins), transitions=transitions, violation=None)


def _trace(origins: dict[S, tuple[S, Action] | None], state: S) -> tuple[tuple[Action, object], ...]:
    steps: list[tuple[Action, object]] = []
    while (origin := origins[state]) is not None:
        steps.append((origin[1], state))
        state = origin[0]
    return tuple(reversed(steps))


def _reaching(good: set[S], before: dict[S, list[S]]) -> set[S]:
    """Return the states from which one of `good` can be reached."""
    saved, left = set(good), list(good)
    while left:
        for state in before.get(left.pop(), ()):
            if state not in saved:
                saved.add(state)
                left.append(state)
    return saved


def _words(action: Action) -> str:
    return " ".join(str(part) for part in action)
