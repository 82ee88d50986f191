"""The planner over time: nodes come, go, drain, fall ill; people give orders; what must hold after every plan."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shard_manager.assignment import MoveCause, Planned, can_serve, plan
from shard_manager.coordinator import Member, MemberState, Plan, SessionInfo, View
from shard_manager.errors import OrderRefused, UnknownNode
from shard_manager.orders import Orders
from shard_manager.plan_codec import decode, encode
from shard_manager.steering import (
    Decision,
    DrainNode,
    EvictNode,
    Given,
    MoveShard,
    Order,
    PauseRebalance,
    ResumeRebalance,
    UndrainNode,
    decide,
)
from tests.support.thoroughness import examples

START = datetime(2030, 1, 1, tzinfo=UTC)
names = st.sampled_from([f"n{number}" for number in range(6)])


class Cluster(RuleBasedStateMachine):
    """The members, the plan in force, and what the last planning did."""

    @initialize(shards=st.integers(1, 40), max_moves=st.integers(1, 6))
    def begin(self, shards: int, max_moves: int) -> None:
        self.shards = shards
        self.max_moves = max_moves
        self.members: dict[str, Member] = {}
        self.sessions: dict[str, SessionInfo] = {}
        self.numbers = 0
        self.now = START
        self.plan: Plan | None = None
        self.last: Planned | None = None
        self.moved_by_order: set[int] = set()

    # What happens.

    @rule(node=names, weight=st.integers(1, 4))
    def join(self, node: str, weight: int) -> None:
        if node in self.members:
            return
        self.numbers += 1
        self.members[node] = Member(node=node, incarnation=self.numbers, weight=weight)
        self._new_session(node)
        self._keep_up()

    @rule(node=names)
    def lose_session_and_return(self, node: str) -> None:
        if node in self.members:
            self._new_session(node)
            self._keep_up()

    @rule(node=names)
    def leave(self, node: str) -> None:
        self.members.pop(node, None)
        self.sessions.pop(node, None)
        self._keep_up()

    @rule(node=names, state=st.sampled_from(list(MemberState)))
    def tell(self, node: str, state: MemberState) -> None:
        if node in self.members:
            self.members[node] = replace(self.members[node], state=state)
            self._keep_up()

    @rule(node=names, weight=st.integers(1, 4))
    def weigh(self, node: str, weight: int) -> None:
        if node in self.members:
            self.members[node] = replace(self.members[node], weight=weight)
            self._keep_up()

    @rule(seconds=st.integers(1, 120))
    def pass_time(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self._keep_up()

    # What people order.

    @rule(node=names, force=st.booleans())
    def drain(self, node: str, force: bool) -> None:
        self._order(DrainNode(node=node, force=force))

    @rule(node=names, force=st.booleans())
    def evict(self, node: str, force: bool) -> None:
        if self._order(EvictNode(node=node, force=force)):
            self._new_session(node)

    @rule(node=names)
    def undrain(self, node: str) -> None:
        self._order(UndrainNode(node=node))

    @rule(shard=st.integers(0, 39), node=names, pin=st.none() | st.integers(1, 200))
    def move(self, shard: int, node: str, pin: int | None) -> None:
        duration = None if pin is None else timedelta(seconds=pin)
        if self._order(MoveShard(shard=shard, node=node, pin=duration)):
            assert self.plan is not None
            assert self.plan.owners[shard] == node

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self._order(PauseRebalance() if paused else ResumeRebalance())

    # What must hold.

    @invariant()
    def every_shard_is_with_a_node_that_can_serve(self) -> None:
        if self.plan is None:
            return
        fit = can_serve(self.members.values(), self.plan.orders)
        if fit:
            assert set(self.plan.owners) == set(range(self.shards))
            assert set(self.plan.owners.values()) <= set(fit)
        else:
            assert self.plan.owners == {}
        for name in fit:
            assert name not in self.plan.orders.drained
            eviction = self.plan.orders.evicted.get(name)
            assert eviction is None or eviction.incarnation != self.members[name].incarnation

    @invariant()
    def pins_are_obeyed_and_none_is_older_than_its_time(self) -> None:
        if self.plan is None:
            return
        fit = can_serve(self.members.values(), self.plan.orders)
        for shard, pin in self.plan.orders.pins.items():
            assert pin.until is not None
            assert pin.until > self.now
            assert pin.node not in fit or self.plan.owners[shard] == pin.node

    @invariant()
    def moves_for_balance_keep_to_their_bound_and_a_pause(self) -> None:
        if self.last is None:
            return
        balance = sum(move.cause is MoveCause.BALANCE for move in self.last.moves)
        assert balance <= max(self.max_moves, 1)
        assert not (self.last.plan.orders.paused and balance)

    @invariant()
    def the_plan_is_what_its_text_says(self) -> None:
        assert self.plan is None or decode(encode(self.plan)) == self.plan

    @precondition(lambda self: self.plan is not None)
    @rule()
    def planning_goes_on_until_all_is_in_balance_and_then_rests(self) -> None:
        assert self.plan is not None
        for _ in range(self.shards + 1):
            if not self._keep_up():
                break
        else:
            raise AssertionError("planning does not come to rest")
        orders = self.plan.orders
        fit = can_serve(self.members.values(), orders)
        if not fit or orders.paused or orders.pins:
            return
        total = sum(self.members[name].weight for name in fit)
        have = Counter(self.plan.owners.values())
        for name in fit:
            assert abs(have[name] - Fraction(self.shards * self.members[name].weight, total)) < 1

    @precondition(lambda self: self.plan is not None)
    @rule(data=st.data())
    def planning_does_not_depend_on_the_order_of_things(self, data: st.DataObject) -> None:
        assert self.plan is not None
        members = data.draw(st.permutations(list(self.members.values())))
        owners = data.draw(st.permutations(list(self.plan.owners.items())))
        shuffled = replace(self.plan, owners=dict(owners))
        one, two = self._plan(list(self.members.values()), self.plan), self._plan(members, shuffled)
        assert (one.plan, one.moves) == (two.plan, two.moves)

    # The leader's part.

    def _new_session(self, node: str) -> None:
        self.numbers += 1
        self.sessions[node] = SessionInfo(number=self.numbers, opened_at=self.now)

    def _view(self) -> View:
        return View(members=dict(self.members), leader="leader", plan=self.plan, held={}, sessions=dict(self.sessions))

    def _orders(self) -> Orders:
        orders = self.plan.orders if self.plan is not None else Orders()
        return orders.without_expired(self.now, {name: one.incarnation for name, one in self.members.items()})

    def _plan(self, members: Sequence[Member], previous: Plan | None) -> Planned:
        return plan(members, previous, self.shards, orders=self._orders(), max_moves=self.max_moves)

    def _keep_up(self) -> bool:
        """Plan for what is now; say whether that changed anything."""
        self.last = self._plan(list(self.members.values()), self.plan)
        self.plan = self.last.plan
        return self.last.changed

    def _order(self, order: Order) -> bool:
        """Carry an order out as the leader does; say whether it was obeyed. Repeated, it changes nothing."""
        self._keep_up()
        try:
            decision = decide(Given(order=order), self._view(), self.shards, self.now)
        except OrderRefused:
            return False
        self._carry_out(decision)
        # Nothing may be known of an absent node once the order to pass it over is gone.
        gone = isinstance(order, UndrainNode) and order.node not in self.members
        with suppress(UnknownNode) if gone else nullcontext():
            assert decide(Given(order=order), self._view(), self.shards, self.now).orders == decision.orders
        return True

    def _carry_out(self, decision: Decision) -> None:
        self.last = plan(
            self.members.values(),
            self.plan,
            self.shards,
            orders=decision.orders,
            moves=decision.moves,
            max_moves=len(decision.moves),
        )
        self.plan = self.last.plan


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
