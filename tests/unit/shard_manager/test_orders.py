"""Orders given to managers on the coordinator in memory: obeyed, kept in the plan, obeyed by later leaders."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from shard_manager.coordinator import Member
from shard_manager.errors import (
    ClusterPaused,
    CoordinatorUnavailable,
    LastNode,
    NodeUnfit,
    NotLeader,
    PlanChanged,
    ProcessGone,
    UnknownNode,
    UnknownShard,
)
from shard_manager.events import (
    Cause,
    ExclusionChanged,
    NodeEvicted,
    OrderObeyed,
    PlanWritten,
    SessionEnded,
    ShardAcquired,
    ShardLost,
)
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from shard_manager.orders import Eviction, Orders, Pin
from shard_manager.steering import (
    DrainNode,
    EvictNode,
    Given,
    MoveShard,
    Order,
    PauseRebalance,
    PlanChange,
    Rebalance,
    ResumeRebalance,
    UndrainNode,
)
from tests.support.virtual_time import virtual_time
from tests.unit.shard_manager.cluster import TIMINGS, Node, Site, ms, now

CALM = replace(TIMINGS, settle=ms(2000), wave=ms(200))


@pytest.fixture
def site() -> Site:
    return Site()


class Trio:
    """Nodes a, b and c with 18 shards in balance; a leads."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.nodes: dict[str, Node] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Trio":
        for name in "abc":
            self.nodes[name] = self.site.node(name, shards=18, timings=CALM, max_moves=3)
            await self._stack.enter_async_context(self.nodes[name])
        for node in self.nodes.values():
            await node.owns(6)
        await asyncio.sleep(5)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self.site.check()
        assert self.site.fences.overlaps == []

    def __getattr__(self, name: str) -> Node:
        return self.nodes[name]

    @property
    def orders(self) -> Orders:
        assert self.site.cluster.plan is not None
        return self.site.cluster.plan.orders

    def owner(self, shard: int) -> str:
        return next(name for name, node in self.nodes.items() if shard in node.owned)

    async def give(self, order: Order, *, to: str = "a", dry_run: bool = False, version: int = 0) -> PlanChange:
        async with asyncio.timeout(10):
            return await self.nodes[to].manager.order(
                Given(order=order, dry_run=dry_run, expected_version=version or None)
            )


@virtual_time
async def test_a_drained_node_lets_everything_go_gracefully_and_stays_a_member(site: Site) -> None:
    async with Trio(site) as trio:
        shards = trio.b.owned
        change = await trio.give(DrainNode(node="b"))
        assert {(move.shard, move.source, move.cause.value) for move in change.moves} == {
            (shard, "b", "drain") for shard in shards
        }
        assert (change.before, change.after) == ({"a": 6, "b": 6, "c": 6}, {"a": 9, "b": 0, "c": 9})
        await trio.b.owns(0)
        await trio.a.owns(9)
        await trio.c.owns(9)
        assert all(site.hosts["b"].stops(shard) == [True] for shard in shards)
        lost = trio.b.events.of(ShardLost)
        assert {event.cause for event in lost if isinstance(event, ShardLost)} == {Cause.DRAIN}
        assert trio.b.events.of(SessionEnded) == []
        assert trio.b.events.of(ExclusionChanged) == [ExclusionChanged(node="b", order="drained")]
        assert OrderObeyed(order="drain b", version=change.plan.version, moves=6) in trio.a.events.all
        await asyncio.sleep(10)
        assert trio.b.owned == set()


@virtual_time
async def test_an_undrained_node_gets_its_share_back_once_things_have_settled(site: Site) -> None:
    async with Trio(site) as trio:
        await trio.give(DrainNode(node="b"))
        await trio.b.owns(0)
        await asyncio.sleep(10)
        await trio.give(UndrainNode(node="b"))
        undrained_s = asyncio.get_running_loop().time()
        await trio.b.events.until(lambda: trio.b.owned)
        assert asyncio.get_running_loop().time() - undrained_s >= CALM.settle.total_seconds()
        await trio.b.owns(6)
        assert trio.orders == Orders()


@virtual_time
async def test_an_order_may_be_repeated_and_changes_nothing_then(site: Site) -> None:
    async with Trio(site) as trio:
        for order in (DrainNode(node="b"), MoveShard(shard=3, node="c"), PauseRebalance(), ResumeRebalance()):
            first = await trio.give(order)
            again = await trio.give(order)
            assert (again.plan, again.moves) == (first.plan, ())


@virtual_time
async def test_the_next_leader_obeys_the_orders_of_the_one_that_died(site: Site) -> None:
    async with Trio(site) as trio:
        await trio.give(DrainNode(node="b"))
        await trio.give(PauseRebalance())
        await trio.a.kill()
        site.cluster.expire("a")
        await trio.c.owns(18)
        await asyncio.sleep(10)
        assert trio.b.owned == set()
        assert trio.orders == Orders(paused=True, drained=frozenset({"b"}))
        await trio.give(UndrainNode(node="b"), to="b")
        await trio.give(ResumeRebalance(), to="b")
        await trio.b.owns(9)


@virtual_time
async def test_a_drain_outlasts_a_restart_of_its_node(site: Site) -> None:
    async with Trio(site) as trio:
        await trio.give(DrainNode(node="b"))
        await trio.b.owns(0)
        await trio.b.manager.drain()
        async with site.node("b", incarnation=2, shards=18, timings=CALM) as again:
            await asyncio.sleep(10)
            assert again.owned == set()


@virtual_time
async def test_an_evicted_node_loses_its_session_and_comes_back_without_shards(site: Site) -> None:
    async with Trio(site) as trio:
        shards = trio.c.owned
        await trio.give(EvictNode(node="c"))
        await trio.c.events.until(lambda: trio.c.events.of(SessionEnded))
        await trio.a.owns(9)
        await trio.b.owns(9)
        assert NodeEvicted(node="c", incarnation=1) in trio.a.events.all
        # Without its help, and at once: nobody waited for a graceful stop.
        assert all(site.hosts["c"].stops(shard) == [False] for shard in shards)
        await trio.c.events.until(lambda: ExclusionChanged(node="c", order="evicted") in trio.c.events.all)
        await asyncio.sleep(10)
        assert trio.c.owned == set()
        # Once only: the session that it has now is left to it.
        assert len(trio.c.events.of(SessionEnded)) == 1
        await trio.give(UndrainNode(node="c"))
        await trio.c.owns(6)


@virtual_time
async def test_an_eviction_ends_with_the_process(site: Site) -> None:
    async with Trio(site) as trio:
        await trio.give(EvictNode(node="c"))
        await trio.c.events.until(lambda: trio.c.events.of(SessionEnded))
        await trio.c.kill()
        site.cluster.expire("c")
        async with site.node("c", incarnation=2, shards=18, timings=CALM) as again:
            await again.owns(6)
            assert trio.orders == Orders()


@virtual_time
async def test_an_evicted_nodes_shards_do_not_wait_for_its_return(site: Site) -> None:
    """It cannot hear: its session would live on for as long as it is renewed."""
    async with Trio(site) as trio:
        began_s = asyncio.get_running_loop().time()
        site.cluster.cut_off("c")
        await trio.give(EvictNode(node="c"))
        await trio.a.owns(9)
        await trio.b.owns(9)
        assert asyncio.get_running_loop().time() - began_s < 1
        # Out of reach as it is, it still believes that it serves. The fence is what makes that harmless.
        assert len(trio.c.owned) == 6
        site.cluster.reconnect("c")
        await trio.c.owns(0)
        site.fences.overlaps.clear()


@virtual_time
async def test_a_leader_that_evicts_itself_is_followed_by_one_that_obeys(site: Site) -> None:
    async with Trio(site) as trio:
        await trio.give(EvictNode(node="a"))
        await trio.b.owns(9)
        await trio.c.owns(9)
        await asyncio.sleep(10)
        assert trio.a.owned == set()
        assert trio.b.manager.status().leader == "b"


@virtual_time
async def test_a_session_that_a_dead_leader_should_have_ended_is_ended_by_the_next(site: Site) -> None:
    async with Trio(site) as trio:
        coordinator = trio.a.coordinator
        view = await coordinator.view()
        assert view.plan is not None
        eviction = Eviction(incarnation=1, session=view.sessions["c"].number)
        orders = Orders(evicted={"c": eviction})
        trio.a.task and trio.a.task.cancel()
        await coordinator.write_plan(replace(view.plan, version=view.plan.version + 1, orders=orders))
        site.cluster.expire("a")
        await trio.c.events.until(lambda: trio.c.events.of(SessionEnded))
        await trio.b.owns(18)
        site.fences.overlaps.clear()


@virtual_time
async def test_a_process_out_of_sight_can_be_evicted_by_its_number(site: Site) -> None:
    async with Trio(site) as trio:
        site.cluster.cut_off("c")
        site.cluster.expire("c")
        await trio.a.owns(9)
        await trio.give(EvictNode(node="c", incarnation=1))
        site.cluster.reconnect("c")
        await asyncio.sleep(10)
        assert trio.c.owned == set()
        with pytest.raises(ProcessGone):
            await trio.give(EvictNode(node="c", incarnation=99))
        site.fences.overlaps.clear()


@virtual_time
async def test_a_moved_shard_stays_and_another_goes_the_other_way(site: Site) -> None:
    async with Trio(site) as trio:
        shard = min(trio.b.owned)
        change = await trio.give(MoveShard(shard=shard, node="c"))
        assert sorted(move.cause.value for move in change.moves) == ["balance", "order"]
        await trio.c.events.until(lambda: shard in trio.c.owned)
        await asyncio.sleep(20)
        assert shard in trio.c.owned
        assert [len(node.owned) for node in trio.nodes.values()] == [6, 6, 6]


@virtual_time
async def test_a_pin_holds_against_balance_and_ends_by_itself(site: Site) -> None:
    async with Trio(site) as trio:
        for shard in range(9):
            await trio.give(MoveShard(shard=shard, node="c", pin=timedelta(seconds=60)))
        await trio.c.owns(9)
        await asyncio.sleep(30)
        assert trio.c.owned == set(range(9))
        assert trio.orders.pins[0] == Pin(node="c", until=trio.orders.pins[0].until)
        await trio.a.kill()
        site.cluster.expire("a")
        await asyncio.sleep(20)
        assert trio.c.owned == set(range(9))
        assert trio.orders.pins
        # The time runs on from leader to leader.
        assert all(
            pin.until is not None and pin.until < now() + timedelta(seconds=11) for pin in trio.orders.pins.values()
        )
        await asyncio.sleep(11)
        assert trio.orders.pins == {}


@virtual_time
async def test_while_paused_a_joiner_gets_nothing_and_orders_are_obeyed(site: Site) -> None:
    async with Trio(site) as trio:
        await trio.give(PauseRebalance())
        async with site.node("d", shards=18, timings=CALM) as joiner:
            await asyncio.sleep(20)
            assert joiner.owned == set()
            with pytest.raises(ClusterPaused):
                await trio.give(Rebalance())
            preview = await trio.give(Rebalance(), dry_run=True)
            assert preview.after == {"a": 5, "b": 5, "c": 4, "d": 4}
            shard = min(trio.b.owned)
            await trio.give(MoveShard(shard=shard, node="d"))
            await joiner.owns(1)
            assert len(trio.b.owned) == 5
            await trio.give(DrainNode(node="c"))
            await trio.c.owns(0)
            await trio.give(UndrainNode(node="c"))
            await trio.give(ResumeRebalance())
            await trio.c.events.until(lambda: len(trio.c.owned) >= 4)


@virtual_time
async def test_a_rebalance_does_not_wait_and_goes_in_bounded_steps(site: Site) -> None:
    slow = replace(CALM, settle=ms(60_000), poll=ms(1000), heartbeat=ms(2000))
    async with site.node("a", shards=18, timings=slow, max_moves=3) as a:
        await a.owns(18)
        # Longer than the time in which the nodes of a new cluster are balanced at once.
        await asyncio.sleep(70)
        async with site.node("b", shards=18, timings=slow) as b:
            await asyncio.sleep(5)
            assert b.owned == set()
            plan = site.cluster.plan
            assert plan is not None
            preview = await a.manager.order(Given(order=Rebalance(), dry_run=True))
            assert (len(preview.moves), preview.plan) == (9, plan)
            assert (preview.before, preview.after) == ({"a": 18, "b": 0}, {"a": 9, "b": 9})
            with pytest.raises(PlanChanged):
                await a.manager.order(Given(order=Rebalance(), expected_version=plan.version + 1))
            began = len(a.events.all)
            change = await a.manager.order(Given(order=Rebalance(), expected_version=plan.version))
            assert change.moves == preview.moves
            await b.owns(9)
            steps = [event.moves for event in a.events.all[began:] if isinstance(event, PlanWritten)]
            assert steps == [3, 3, 3]
    site.check()


@virtual_time
async def test_what_cannot_be_obeyed_is_refused_and_changes_nothing(site: Site) -> None:
    async with Trio(site) as trio:
        before = site.cluster.plan
        cases: list[tuple[Order, type[Exception]]] = [
            (DrainNode(node="x"), UnknownNode),
            (UndrainNode(node="x"), UnknownNode),
            (EvictNode(node="x"), UnknownNode),
            (MoveShard(shard=18, node="a"), UnknownShard),
            (MoveShard(shard=-1, node="a"), UnknownShard),
            (MoveShard(shard=1, node="x"), UnknownNode),
        ]
        for order, error in cases:
            with pytest.raises(error):
                await trio.give(order)
        assert site.cluster.plan is before
        for node in ("b", "c"):
            await trio.give(DrainNode(node=node))
        with pytest.raises(NodeUnfit):
            await trio.give(MoveShard(shard=1, node="b"))
        for last in (DrainNode(node="a"), EvictNode(node="a")):
            with pytest.raises(LastNode):
                await trio.give(last)
        await trio.a.owns(18)
        await trio.give(DrainNode(node="a", force=True))
        await trio.a.owns(0)


@virtual_time
async def test_only_the_leader_takes_orders(site: Site) -> None:
    async with Trio(site) as trio:
        with pytest.raises(NotLeader) as caught:
            await trio.give(PauseRebalance(), to="b")
        assert caught.value.leader == "a"
        site.cluster.expire("a")
        with pytest.raises(NotLeader):
            await trio.give(PauseRebalance())
        assert not trio.orders.paused
    with pytest.raises(NotLeader):
        await trio.a.manager.order(Given(order=PauseRebalance()))


class Stubborn(MemoryCoordinator):
    """Does not write plans while it is told so; the request is lost, or its answer."""

    silent = ""

    async def write_plan(self, plan: object) -> None:
        if self.silent == "request":
            raise CoordinatorUnavailable("write_plan", "request lost")
        await super().write_plan(plan)  # type: ignore[arg-type]
        if self.silent == "answer":
            self.silent = ""
            raise CoordinatorUnavailable("write_plan", "answer lost")


@virtual_time
async def test_an_order_waits_for_the_coordinator_as_long_as_its_giver(site: Site) -> None:
    stubborn = Stubborn(site.cluster)
    async with site.node("a", coordinator=stubborn) as a:
        await a.owns(16)
        stubborn.silent = "request"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await a.manager.order(Given(order=PauseRebalance()))
        stubborn.silent = ""
        await asyncio.sleep(5)
        assert site.cluster.plan is not None
        assert not site.cluster.plan.orders.paused
        for silent in ("request", "answer"):
            stubborn.silent = silent
            given = asyncio.create_task(a.manager.order(Given(order=PauseRebalance())))
            await asyncio.sleep(3)
            assert given.done() == (silent == "answer")
            stubborn.silent = ""
            assert (await given).plan.orders.paused
            await a.manager.order(Given(order=ResumeRebalance()))


class Polled(MemoryCoordinator):
    """Tells nobody of anything: nodes learn of it when they look, each at times of its own."""

    tells_at_once = False

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        cluster.unwatch(self._woken)


@virtual_time
async def test_where_nodes_learn_of_a_plan_at_different_times_a_shard_is_not_let_go_too_early(site: Site) -> None:
    polled = replace(TIMINGS, poll=ms(1000), handoff_poll=ms(50), settle=ms(3000))
    lost_s: dict[int, float] = {}
    gaps_s: list[float] = []
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for name in "abc":
            node = site.node(name, shards=18, coordinator=Polled(site.cluster), timings=polled, max_moves=18)
            await stack.enter_async_context(node)
            nodes.append(node)
            await asyncio.sleep(0.37)
        for node in nodes:
            await node.owns(6)

            def note(event: object) -> None:
                if isinstance(event, ShardLost):
                    lost_s[event.shard] = asyncio.get_running_loop().time()
                elif isinstance(event, ShardAcquired) and event.shard in lost_s:
                    gaps_s.append(asyncio.get_running_loop().time() - lost_s.pop(event.shard))

            node.manager._observer = note
        await nodes[0].manager.order(Given(order=DrainNode(node="b")))
        await asyncio.sleep(5)
    assert len(gaps_s) == 6
    assert max(gaps_s) <= 0.1, gaps_s


async def test_a_member_named_like_a_drained_node_may_be_undrained_when_it_is_gone() -> None:
    """As a node whose machine was taken out of service."""
    site = Site()
    async with site.node("a") as a:
        await a.owns(16)
        other = MemoryCoordinator(site.cluster)
        await other.join(Member(node="b", incarnation=1), ttl=ms(60_000))
        await a.manager.order(Given(order=DrainNode(node="b")))
        await other.leave()
        await a.manager.order(Given(order=DrainNode(node="b")))
        change = await a.manager.order(Given(order=UndrainNode(node="b")))
        assert change.plan.orders == Orders()
