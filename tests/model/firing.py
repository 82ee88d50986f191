"""Model: one schedule, two nodes that both believe to own it, and a user who pauses, resumes and redefines it.

| action | stands for |
|---|---|
| read | `FiringStore.due_schedules`: DUE; the plan is made from what was read: `server.domain.firing` |
| fire | `FiringStore.fire`: FIRE compares `next_fire_at`, `version` and `paused`, moves the time on, inserts the job |
| pause, resume | `Schedules.pause`, `ScheduleChanges`: both raise the version |
| redefine | `ScheduleChanges.UPDATE`: other times from now on, a new version |

The fence is left out on purpose: that each firing comes once must not rest on it. So is the unique index over live
jobs, for a job may have finished.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Removed

LAST = 4
NODES = (0, 1)


class Order(NamedTuple):
    """What a node has read, and wants to fire."""

    nominal: int
    version: int
    step: int


class State(NamedTuple):
    """The schedule's row, what the nodes are about to do, what was fired: (nominal time, version)."""

    next: int = 1
    version: int = 1
    paused: bool = False
    step: int = 1  # ticks between nominal times: every one, or after `redefine` every second
    orders: tuple[Order | None, Order | None] = (None, None)
    fired: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()  # while paused, or by a redefinition: told to the user
    pauses: int = 1
    redefinitions: int = 1


class Firing:
    """The model; see the module."""

    def __init__(self, removed: Removed = ()) -> None:
        self._removed = removed

    def initial(self) -> State:
        return State()

    def wrong(self, state: State) -> str:
        if len(set(state.fired)) < len(state.fired):
            return "a time is fired twice"
        accounted = {*state.fired, *state.skipped}
        if not accounted.issuperset(range(1, min(state.next, LAST + 1))):
            return "a time is passed over in silence"
        return ""

    def is_good(self, state: State) -> bool:
        return state.next > LAST

    def steps(self, state: State) -> Iterator[Step[State]]:
        for node in NODES:
            order = state.orders[node]
            if order is None:
                if not state.paused and state.next <= LAST:
                    read = Order(state.next, state.version, state.step)
                    yield Step(("read", node), _ordered(state, node, read))
            else:
                yield self._fire(state, node, order)
        if state.paused:
            yield Step(("resume",), state._replace(paused=False, version=state.version + 1))
        elif state.pauses:
            yield Step(("pause",), state._replace(paused=True, version=state.version + 1, pauses=0))
        if state.redefinitions:
            following = state.next + state.next % 2
            skipped = (*state.skipped, *range(state.next, following))
            yield Step(
                ("redefine",),
                state._replace(next=following, step=2, version=state.version + 1, skipped=skipped, redefinitions=0),
            )

    def _fire(self, state: State, node: int, order: Order) -> Step[State]:
        done = _ordered(state, node, None)
        removed = self._removed
        if (
            (order.nominal != state.next and Protection.FIRE_NEXT not in removed)
            or (order.version != state.version and Protection.FIRE_VERSION not in removed)
            or (state.paused and Protection.FIRE_PAUSED not in removed)
        ):
            return Step(("refused", node), done)
        wrong = ""
        if state.paused:
            wrong = "a paused schedule fires"
        elif order.version != state.version:
            wrong = "a schedule fires by a definition that has changed"
        following = order.nominal + order.step
        if following < state.next:
            wrong = wrong or "the next time moves back"
        # Times between those of the new definition are not its own.
        skipped = (*state.skipped, *range(order.nominal + 1, following))
        after = done._replace(next=following, fired=(*state.fired, order.nominal), skipped=skipped)
        return Step(("fire", order.nominal, "by node", node), after, wrong)


def _ordered(state: State, node: int, order: Order | None) -> State:
    first, second = state.orders
    return state._replace(orders=(order, second) if node == 0 else (first, order))
