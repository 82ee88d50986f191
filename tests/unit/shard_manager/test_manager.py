"""The manager's loops, on the coordinator in memory."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import pytest

from shard_manager.coordinator import Lease, Member, MemberState, Plan, View
from shard_manager.errors import CoordinatorUnavailable, NodeNameTaken, SessionLost, ShardCountMismatch
from shard_manager.events import (
    Cause,
    Drained,
    FenceRefusal,
    LeaderChanged,
    PlanSeen,
    PlanWritten,
    SessionEnded,
    SessionOpened,
    ShardAcquired,
    ShardLost,
    TroubleBegan,
    TroubleOver,
)
from shard_manager.lease import Active
from shard_manager.memory import MemoryCoordinator
from shard_manager.orders import Orders, Pin
from tests.support.virtual_time import virtual_time
from tests.unit.shard_manager.cluster import TIMINGS, Site, bounded, ms


@pytest.fixture
def site() -> Site:
    return Site()


@virtual_time
async def test_a_single_node_owns_all_shards_without_waiting_for_a_poll(site: Site) -> None:
    slow = replace(TIMINGS, poll=ms(60_000), handoff_poll=ms(60_000), settle=ms(60_000), loss_guard=ms(60_000))
    async with site.node("a", shards=64, timings=slow) as a:
        await a.owns(64)
        assert site.hosts["a"].running == dict.fromkeys(range(64), 1)
        assert site.hosts["a"].fence_calls == 1
        assert a.events.of(SessionOpened) == [SessionOpened(node="a", lost_before=0)]
        assert a.events.of(LeaderChanged) == [LeaderChanged(leader="a", previous=None)]
        assert a.events.of(PlanWritten) == [PlanWritten(version=1, moves=64, reason="unowned 64")]
        assert a.events.of(PlanSeen) == [PlanSeen(version=1, mine=64)]
        status = a.manager.status()
        assert status.joined
        assert status.leader == "a"
        assert status.plan_version == 1
        assert set(status.members) == {"a"}
        assert all(isinstance(state, Active) for state in status.shards.values())
        assert status.trouble is None
    site.check()


@virtual_time
async def test_a_joiner_gets_its_share_and_no_shard_is_ever_served_twice(site: Site) -> None:
    async with site.node("a", max_moves=100) as a:
        await a.owns(16)
        async with site.node("b") as b:
            await b.owns(8)
            await a.owns(8)
            assert a.owned.isdisjoint(b.owned)
            assert {event.cause for event in a.events.of(ShardLost) if isinstance(event, ShardLost)} == {Cause.PLAN}
            assert all(stops == [True] for stops in map(site.hosts["a"].stops, b.owned))
            assert site.fences.overlaps == []
    site.check()


@virtual_time
async def test_balance_moves_in_small_rounds(site: Site) -> None:
    async with site.node("a", max_moves=3) as a:
        await a.owns(16)
        await asyncio.sleep(TIMINGS.settle.total_seconds())
        async with site.node("b") as b:
            await b.owns(8)
        sizes = [event.moves for event in a.events.of(PlanWritten) if isinstance(event, PlanWritten)]
        assert sizes == [16, 3, 3, 2]


@virtual_time
async def test_the_nodes_of_a_new_cluster_share_at_once(site: Site) -> None:
    async with site.node("a", max_moves=3) as a:
        await a.owns(16)
        async with site.node("b") as b:
            await b.owns(8)
        sizes = [event.moves for event in a.events.of(PlanWritten) if isinstance(event, PlanWritten)]
        assert sizes == [16, 8]
    site.check()


@virtual_time
async def test_a_dead_nodes_shards_are_taken_when_its_session_is_over(site: Site) -> None:
    async with site.node("a", max_moves=100) as a, site.node("b") as b:
        await b.owns(8)
        await a.owns(8)
        await b.kill()
        assert site.hosts["b"].running == {}
        await asyncio.sleep(0)
        assert len(a.owned) == 8
        site.cluster.expire("b")
        await a.owns(16)
    site.check()


@virtual_time
async def test_when_the_leader_dies_another_leads(site: Site) -> None:
    async with site.node("a", max_moves=100) as a:
        await a.owns(16)
        async with site.node("b") as b:
            await b.owns(8)
            await a.kill()
            site.cluster.expire("a")
            await b.owns(16)
            assert b.events.of(LeaderChanged)[-1] == LeaderChanged(leader="b", previous="a")
    site.check()


# Losing the session, losing the coordinator.


@virtual_time
async def test_a_lost_session_stops_everything_at_once_and_everything_is_leased_and_fenced_anew(site: Site) -> None:
    async with site.node("a") as a:
        await a.owns(16)
        site.cluster.expire("a")
        await a.events.until(lambda: a.events.of(SessionEnded))
        await a.owns(16)
        assert site.hosts["a"].running == dict.fromkeys(range(16), 2)
        lost = a.events.of(ShardLost)
        assert lost == [ShardLost(shard=shard, epoch=1, cause=Cause.SESSION_LOST) for shard in range(16)]
        assert all(site.hosts["a"].stops(shard) == [False] for shard in range(16))
        assert a.events.of(SessionOpened)[-1] == SessionOpened(node="a", lost_before=1)
        assert a.manager.status().sessions_lost == 1
    site.check()


@virtual_time
async def test_while_the_coordinator_is_away_shards_are_served_on(site: Site) -> None:
    async with site.node("a") as a:
        await a.owns(16)
        site.cluster.cut_off("a")
        await a.events.until(lambda: len(a.events.of(TroubleBegan)) == 2, "both loops in trouble")
        trouble = a.manager.status().trouble
        assert trouble is not None
        assert "cut off" in trouble
        assert site.hosts["a"].running == dict.fromkeys(range(16), 1)
        site.cluster.reconnect("a")
        await a.events.until(lambda: len(a.events.of(TroubleOver)) == 2, "both loops out of trouble")
        assert a.events.of(ShardLost, SessionEnded) == []
        assert site.hosts["a"].running == dict.fromkeys(range(16), 1)
        assert a.manager.status().trouble is None


@virtual_time
async def test_if_the_session_expired_while_the_coordinator_was_away_the_node_starts_over(site: Site) -> None:
    async with site.node("a") as a:
        await a.owns(16)
        site.cluster.cut_off("a")
        await a.events.until(lambda: a.events.of(TroubleBegan))
        site.cluster.expire("a")
        assert a.events.of(ShardLost) == []
        assert len(a.owned) == 16
        site.cluster.reconnect("a")
        await a.events.until(lambda: a.events.of(SessionEnded))
        await a.owns(16)
        assert site.hosts["a"].running == dict.fromkeys(range(16), 2)
    site.check()


@virtual_time
async def test_nodes_that_all_lost_their_sessions_take_their_own_shards_again(site: Site) -> None:
    patient = replace(TIMINGS, loss_guard=ms(5000))
    async with (
        site.node("a", max_moves=100, timings=patient) as a,
        site.node("b", timings=patient) as b,
        site.node("c", timings=patient) as c,
    ):
        nodes = (a, b, c)
        await a.events.until(lambda: sorted(len(node.served) for node in nodes) == [5, 5, 6])
        before = {node.name: node.owned for node in nodes}
        plan = site.cluster.plan
        for node in nodes:
            site.cluster.expire(node.name)
        await a.events.until(lambda: all(node.events.of(SessionEnded) for node in nodes))
        for node in nodes:
            await node.owns(len(before[node.name]))
        assert {node.name: node.owned for node in nodes} == before
        assert site.cluster.plan == plan
    site.check()


@virtual_time
async def test_losing_the_session_cuts_a_graceful_stop_short(site: Site) -> None:
    unhurried = replace(TIMINGS, stop_call=ms(60_000))
    async with site.node("a", timings=unhurried) as a:
        await a.owns(16)
        await asyncio.sleep(TIMINGS.settle.total_seconds())
        site.hosts["a"].hang_on_stop = {(3, True)}
        other = MemoryCoordinator(site.cluster)
        plan = (await a.coordinator.view()).plan
        assert plan is not None
        pinned = replace(plan, version=2, owners={**plan.owners, 3: "b"}, orders=Orders(pins={3: Pin(node="b")}))
        await other.join(Member(node="b", incarnation=1), ttl=ms(60_000))
        await a.coordinator.write_plan(pinned)
        a.coordinator.wake()
        await a.events.until(lambda: site.hosts["a"].stops(3) == [True])
        site.cluster.expire("a")
        await a.events.until(lambda: site.hosts["a"].stops(3) == [True, False])
        await a.owns(15)
        await other.leave()
    site.check()


@virtual_time
async def test_a_lease_that_nobody_asked_for_is_given_back(site: Site) -> None:
    """As after an acquire whose answer was lost, and a plan that has changed its mind since."""
    async with site.node("a") as a:
        await a.owns(16)
        other = MemoryCoordinator(site.cluster)
        await other.join(Member(node="b", incarnation=1), ttl=ms(60_000))
        plan = site.cluster.plan
        assert plan is not None
        await a.coordinator.write_plan(
            replace(plan, version=2, owners={**plan.owners, 3: "b"}, orders=Orders(pins={3: Pin(node="b")}))
        )
        await a.events.until(lambda: 3 not in a.owned and 3 in site.hosts["a"].given_back)
        await a.coordinator.acquire([3])
        leases = await other.acquire([3])
        while not leases:
            await bounded(other.wait_change(60))
            leases = await other.acquire([3])
        assert [lease.shard for lease in leases] == [3]
        await other.leave()
    site.check()


@virtual_time
async def test_a_lease_that_somebody_took_away_is_noticed(site: Site) -> None:
    async with site.node("a") as a:
        await a.owns(16)
        held = (await a.coordinator.view()).held
        await a.coordinator.release([held[4]])
        await a.events.until(lambda: a.events.of(ShardLost))
        assert a.events.of(ShardLost) == [ShardLost(shard=4, epoch=1, cause=Cause.LEASE_GONE)]
        await a.owns(16)
        assert a.manager.owned[4] == 2
    site.check()


class Forgetful(MemoryCoordinator):
    """Loses every session right after it was opened."""

    joins = 0

    async def join(self, member: Member, *, ttl: timedelta, replaces: Collection[int] = ()) -> None:
        self.joins += 1
        await super().join(member, ttl=ttl, replaces=replaces)

    async def view(self, *, fresh: bool = False) -> View:
        raise SessionLost("a")


@virtual_time
async def test_sessions_that_are_lost_again_and_again_do_not_spin(site: Site) -> None:
    coordinator = Forgetful(site.cluster)
    slow = replace(TIMINGS, backoff_initial=ms(40), backoff_max=ms(40))
    async with site.node("a", coordinator=coordinator, timings=slow) as a:
        began = asyncio.get_running_loop().time()
        await a.events.until(lambda: coordinator.joins == 6)
        assert asyncio.get_running_loop().time() - began >= 4 * 0.02


# Fences.


@virtual_time
async def test_a_fenced_shard_is_dropped_and_taken_anew(site: Site) -> None:
    # Nothing of it may wait for a poll.
    async with site.node("a", timings=replace(TIMINGS, poll=ms(60_000), handoff_poll=ms(60_000))) as a:
        await a.owns(16)
        a.manager.fenced(5, 1)
        assert 5 not in a.manager.owned
        assert a.events.of(ShardLost) == [ShardLost(shard=5, epoch=1, cause=Cause.FENCED)]
        await a.owns(16)
        assert a.manager.owned == {**dict.fromkeys(range(16), 1), 5: 2}
        assert site.hosts["a"].stops(5) == [False]
        # A statement of the old epoch that comes back late is no news, nor is a shard that does not exist.
        a.manager.fenced(5, 1)
        a.manager.fenced(99)
        assert a.manager.owned[5] == 2
        a.manager.fenced(5)
        assert 5 not in a.manager.owned
    site.check()


@virtual_time
async def test_a_refused_fence_is_tried_again_with_a_newer_lease(site: Site) -> None:
    site.fences.leases[3] = Lease(shard=3, generation=1, token=10)
    site.fences.leases[9] = Lease(shard=9, generation=1, token=18)
    site.fences.epochs = {3: 7, 9: 7}
    site.fences.owners = {3: "x", 9: "x"}
    async with site.node("a") as a:
        await a.owns(16)
        assert a.events.of(FenceRefusal)[0] == FenceRefusal(shard=3, generation=1, token=4)
        assert a.manager.owned[3] == 8
        assert a.manager.owned[9] == 8
    site.check()


@virtual_time
async def test_a_shard_that_is_refused_for_ever_does_not_spin_and_harms_no_other(site: Site) -> None:
    site.fences.leases[3] = Lease(shard=3, generation=2, token=1)
    site.fences.epochs[3], site.fences.owners[3] = 7, "x"
    slow = replace(TIMINGS, backoff_initial=ms(40), backoff_max=ms(40))
    async with site.node("a", timings=slow) as a:
        await a.owns(15)
        began = asyncio.get_running_loop().time()
        await a.events.until(lambda: len(a.events.of(FenceRefusal)) == 5)
        # The first refusal is free, each later one costs a pause.
        assert asyncio.get_running_loop().time() - began == pytest.approx(3 * 0.04)
        assert len(a.served) == 15
        site.cluster.generation = 3
        await a.owns(16)
    site.check()


@virtual_time
async def test_while_the_database_fails_fencing_in_is_tried_again(site: Site) -> None:
    node = site.node("a")
    site.hosts["a"].fence_errors = [RuntimeError("database away"), TimeoutError()]
    async with node as a:
        await a.owns(16)
        assert site.hosts["a"].fence_calls >= 3
        began = a.events.of(TroubleBegan)
        assert [type(event.error) for event in began if isinstance(event, TroubleBegan)] == [TimeoutError, RuntimeError]
    site.check()


# The shard host.


@virtual_time
async def test_a_shard_that_does_not_start_is_given_back_and_tried_again(site: Site) -> None:
    node = site.node("a")
    site.hosts["a"].refuse_to_start = {2}
    async with node as a:
        await a.owns(15)
        await a.events.until(lambda: len([call for call in site.hosts["a"].calls if call[:2] == ("start", 2)]) >= 3)
        assert {event.cause for event in a.events.of(ShardLost) if isinstance(event, ShardLost)} == {Cause.START_FAILED}
        site.hosts["a"].refuse_to_start = set()
        await a.owns(16)
    site.check()


@virtual_time
async def test_a_graceful_stop_that_hangs_becomes_an_immediate_one_and_then_the_shard_is_released(site: Site) -> None:
    node = site.node("a", max_moves=100)
    site.hosts["a"].hang_on_stop = {(shard, True) for shard in range(16)} | {(15, False)}
    async with node as a:
        await a.owns(16)
        async with site.node("b") as b:
            await b.owns(8)
            given = sorted(b.owned)
            assert all(site.hosts["a"].stops(shard) == [True, False] for shard in given)
        site.hosts["a"].hang_on_stop = set()


@virtual_time
async def test_an_observer_that_fails_harms_nothing(site: Site) -> None:
    node = site.node("a")
    node.events.raises = True
    async with node as a:
        await a.owns(16)


# Draining and ending.


@virtual_time
async def test_a_draining_node_serves_until_others_have_been_given_its_shards(site: Site) -> None:
    async with site.node("a", max_moves=100) as a, site.node("b") as b:
        await b.owns(8)
        await a.owns(8)
        before = list(a.events.all)
        await bounded(a.manager.drain())
        assert site.hosts["a"].running == {}
        assert a.events.all[-1] == Drained(node="a", left=True)
        handed_over = [event for event in a.events.of(PlanWritten, ShardLost) if event not in before]
        assert handed_over[0] == PlanWritten(version=3, moves=8, reason="drain 8")
        assert {event.cause for event in handed_over[1:] if isinstance(event, ShardLost)} == {Cause.DRAIN}
        await b.owns(16)
        assert set((await b.coordinator.view()).members) == {"b"}
        assert site.fences.overlaps == []
        stops = [call for call in site.hosts["a"].calls if call[0] == "stop"]
        assert all(graceful for _, _, graceful in stops)
    site.check()


@virtual_time
async def test_a_draining_follower_serves_until_the_plan_has_given_its_shards_away(site: Site) -> None:
    async with site.node("a", max_moves=100) as a, site.node("b") as b:
        await b.owns(8)
        await a.owns(8)
        before = list(b.events.all)
        await bounded(b.manager.drain())
        news = [event for event in b.events.of(PlanSeen, ShardLost) if event not in before]
        assert news[0] == PlanSeen(version=3, mine=0)
        assert len(news) == 9
        await a.owns(16)
    site.check()


@virtual_time
async def test_the_last_node_drains_without_waiting_for_others(site: Site) -> None:
    patient = replace(TIMINGS, drain_handover=ms(60_000), leave_limit=ms(60_000), drain_limit=ms(60_000))
    async with site.node("a", timings=patient) as a:
        await a.owns(16)
        await bounded(a.manager.drain())
        assert a.task is not None
        await a.task
        assert site.cluster.members() == {}
        assert sorted(site.hosts["a"].given_back) == list(range(16))
        assert site.cluster.plan is not None
        assert site.cluster.plan.owners == {}
    async with site.node("other", timings=patient, incarnation=2) as b:
        await b.owns(16)
    site.check()


@virtual_time
async def test_a_drain_ends_even_if_the_coordinator_does_not_answer(site: Site) -> None:
    async with site.node("a", timings=replace(TIMINGS, drain_limit=ms(60_000))) as a:
        await a.owns(16)
        site.cluster.cut_off("a")
        await bounded(a.manager.drain())
        assert site.hosts["a"].running == {}
        assert all(site.hosts["a"].stops(shard) == [True] for shard in range(16))
        assert a.events.all[-1] == Drained(node="a", left=False)
        assert a.task is not None
        await a.task


@virtual_time
async def test_draining_twice_or_too_early_is_harmless(site: Site) -> None:
    node = site.node("a")
    await bounded(node.manager.drain())
    async with node as a:
        await asyncio.gather(bounded(a.manager.drain()), bounded(a.manager.drain()))
        assert a.events.all == [Drained(node="a", left=False)]
        await bounded(a.manager.drain())


@virtual_time
async def test_cancelling_stops_all_shards_at_once_and_leaves_the_session(site: Site) -> None:
    async with site.node("a") as a:
        await a.owns(16)
        await a.kill()
        assert site.hosts["a"].running == {}
        assert all(site.hosts["a"].stops(shard) == [False] for shard in range(16))
        assert set(site.cluster.members()) == {"a"}


@virtual_time
async def test_an_unhealthy_node_loses_its_shards_to_a_healthy_one_and_gets_its_share_back(site: Site) -> None:
    async with site.node("a", max_moves=100) as a, site.node("b") as b:
        await b.owns(8)
        b.manager.set_healthy(False)
        await a.owns(16)
        assert a.manager.status().members["b"].state is MemberState.UNHEALTHY
        b.manager.set_healthy(True)
        await b.owns(8)
    site.check()


# Starting.


@virtual_time
async def test_a_node_whose_name_is_taken_waits_visibly_until_it_is_free(site: Site) -> None:
    async with site.node("a") as a:
        await a.owns(16)
        async with site.node("a", incarnation=2) as namesake:
            await namesake.events.until(lambda: namesake.events.of(TroubleBegan))
            error = namesake.events.of(TroubleBegan)[0]
            assert isinstance(error, TroubleBegan)
            assert isinstance(error.error, NodeNameTaken)
            assert "name 'a' is taken" in (namesake.manager.status().trouble or "")
            await bounded(a.manager.drain())
            await namesake.owns(16)


@virtual_time
async def test_a_restarted_node_takes_over_from_its_dead_predecessor_at_once(site: Site) -> None:
    eternal = replace(TIMINGS, session_ttl=ms(60_000))
    async with site.node("a", timings=eternal) as a:
        await a.owns(16)
        await a.kill()
    async with site.node("a", incarnation=2, replaces=[1], timings=eternal) as successor:
        await successor.owns(16)
        assert successor.events.of(PlanWritten, TroubleBegan) == []
        assert site.hosts["a"].running == dict.fromkeys(range(16), 2)


@virtual_time
async def test_a_cluster_with_another_number_of_shards_is_not_served(site: Site) -> None:
    async with site.node("a", shards=16) as a:
        await a.owns(16)
        async with site.node("b", shards=32) as b:
            await b.events.until(lambda: b.events.of(TroubleBegan))
            trouble = b.events.of(TroubleBegan)[0]
            assert isinstance(trouble, TroubleBegan)
            assert isinstance(trouble.error, ShardCountMismatch)
            assert b.owned == set()


@virtual_time
async def test_a_coordinator_that_is_away_at_the_start_is_waited_for(site: Site) -> None:
    site.cluster.cut_off("a")
    async with site.node("a") as a:
        await a.events.until(lambda: a.events.of(TroubleBegan))
        trouble = a.events.of(TroubleBegan)[0]
        assert isinstance(trouble, TroubleBegan)
        assert isinstance(trouble.error, CoordinatorUnavailable)
        site.cluster.reconnect("a")
        await a.owns(16)


class Watched(MemoryCoordinator):
    """Notes which views were asked for as fresh."""

    freshness: list[bool]

    async def view(self, *, fresh: bool = False) -> View:
        self.freshness.append(fresh)
        return await super().view(fresh=fresh)


@virtual_time
async def test_everything_is_read_anew_now_and_then(site: Site) -> None:
    watched = Watched(site.cluster)
    watched.freshness = []
    async with site.node("a", coordinator=watched, timings=replace(TIMINGS, poll=ms(10), reread=ms(100))) as a:
        await a.owns(16)
        await a.events.until(lambda: watched.freshness.count(True) >= 3)
        assert watched.freshness[0]
        assert watched.freshness.count(False) > watched.freshness.count(True)


@virtual_time
async def test_an_operators_plan_is_obeyed(site: Site) -> None:
    async with site.node("a", max_moves=100) as a, site.node("b") as b:
        await b.owns(8)
        await a.owns(8)
        plan = site.cluster.plan
        assert isinstance(plan, Plan)
        shard = min(b.owned)
        orders = Orders(pins={shard: Pin(node="a")}, paused=True)
        await a.coordinator.write_plan(replace(plan, version=plan.version + 1, orders=orders))
        await a.events.until(lambda: shard in a.owned)
        acquired = a.events.of(ShardAcquired)[-1]
        assert acquired == ShardAcquired(shard=shard, epoch=site.fences.epochs[shard], cause=Cause.PLAN)
    site.check()
