"""What every coordinator promises; see `shard_manager.coordinator.Coordinator`."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from shard_manager.coordinator import Coordinator, Lease, Member, MemberState, Plan
from shard_manager.errors import InvalidSetting, NodeNameTaken, NotLeader, PlanConflict, SessionLost
from shard_manager.orders import Eviction, Orders, Pin
from tests.contract.coordinator.benches import Bench

TTL = timedelta(seconds=10)
A = Member(node="a", incarnation=1, address="127.0.0.1:7400", weight=3)
B = Member(node="b", incarnation=2)
C = Member(node="c", incarnation=3)


async def joined(bench: Bench, member: Member) -> Coordinator:
    coordinator = bench.coordinator()
    await coordinator.join(member, ttl=TTL)
    return coordinator


def first_plan(**owners: list[int]) -> Plan:
    return Plan(
        version=1,
        shards=8,
        owners={shard: node for node, shards in owners.items() for shard in shards},
        orders=Orders(
            paused=True,
            pins={3: Pin(node="b", until=datetime(2030, 1, 1, tzinfo=UTC))},
            drained=frozenset({"c"}),
            evicted={"d": Eviction(incarnation=7, session=8)},
        ),
        leader="a",
        reason="a reason with ' and ü",
    )


def by_shard(leases: object) -> dict[int, Lease]:
    assert isinstance(leases, list)
    return {lease.shard: lease for lease in leases}


async def do(coordinator: Coordinator, call: str, lease: Lease) -> None:
    match call:
        case "renew":
            await coordinator.renew(A)
        case "view":
            await coordinator.view()
        case "write_plan":
            await coordinator.write_plan(first_plan(a=[0]))
        case "acquire":
            await coordinator.acquire([0])
        case "evict":
            await coordinator.evict("b", 1)
        case _:
            await coordinator.release([lease])


# Sessions and members.


async def test_members_are_what_they_said_when_they_joined(bench: Bench) -> None:
    a = await joined(bench, A)
    await joined(bench, B)
    view = await a.view()
    assert view.members == {"a": A, "b": B}
    assert view.plan is None
    assert view.held == {}


async def test_a_renewal_publishes_what_the_member_says_now(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    draining = replace(B, state=MemberState.DRAINING, weight=7, address="10.0.0.1:1")
    await b.renew(draining)
    assert (await a.view()).members["b"] == draining


async def test_a_renewal_as_somebody_else_is_refused(bench: Bench) -> None:
    a = await joined(bench, A)
    with pytest.raises(InvalidSetting):
        await a.renew(replace(A, incarnation=99))
    with pytest.raises(InvalidSetting):
        await a.renew(replace(A, node="z"))


async def test_a_session_ends_its_ttl_after_the_last_renewal(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    await a.acquire([0, 1])
    await bench.pass_time(9)
    await b.renew(B)
    assert set((await b.view()).members) == {"a", "b"}
    await bench.pass_time(2)
    view = await b.view()
    assert set(view.members) == {"b"}
    assert view.leader == "b"
    assert len(await b.acquire([0, 1])) == 2


@pytest.mark.parametrize("call", ["renew", "view", "write_plan", "acquire", "release", "evict"])
async def test_every_call_tells_that_the_session_is_over_until_the_next_join(bench: Bench, call: str) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    lease = by_shard(await a.acquire([5]))[5]
    await bench.expire("a")
    await b.view()  # whoever looks first removes it

    for _ in range(2):
        with pytest.raises(SessionLost):
            await do(a, call, lease)
    await a.join(A, ttl=TTL)
    assert set((await a.view()).members) == {"a", "b"}
    assert (await a.view()).held == {}


@pytest.mark.parametrize("call", ["renew", "view", "write_plan", "acquire", "release", "evict"])
async def test_a_session_past_its_time_is_over_even_if_nobody_has_noticed(bench: Bench, call: str) -> None:
    a = await joined(bench, A)
    lease = by_shard(await a.acquire([5]))[5]
    await bench.pass_time(11)
    with pytest.raises(SessionLost):
        await do(a, call, lease)


async def test_before_joining_there_is_no_session(bench: Bench) -> None:
    coordinator = bench.coordinator()
    for call in (coordinator.view(), coordinator.acquire([0]), coordinator.release([])):
        with pytest.raises(SessionLost):
            await call
    await coordinator.leave()


async def test_leaving_frees_leases_name_and_leadership_at_once(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    await a.acquire([0, 1, 2])
    await a.leave()
    view = await b.view()
    assert set(view.members) == {"b"}
    assert view.leader == "b"
    assert len(await b.acquire([0, 1, 2])) == 3
    await a.leave()
    other = await joined(bench, replace(A, incarnation=77))
    assert (await other.view()).members["a"].incarnation == 77


async def test_closing_leaves_the_session_to_expire(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    await a.acquire([0])
    await a.close()
    assert set((await b.view()).members) == {"a", "b"}
    await bench.pass_time(9)
    await b.renew(B)
    await bench.pass_time(2)
    assert set((await b.view()).members) == {"b"}


# Names.


async def test_a_live_nodes_name_is_taken(bench: Bench) -> None:
    a = await joined(bench, A)
    impostor = bench.coordinator()
    with pytest.raises(NodeNameTaken) as caught:
        await impostor.join(replace(A, incarnation=9), ttl=TTL)
    assert caught.value.node == "a"
    assert caught.value.incarnation == 1
    assert caught.value.address == A.address
    assert 9 < caught.value.expires_in_s <= 10
    await a.renew(A)
    with pytest.raises(SessionLost):
        await impostor.view()


async def test_a_name_is_free_again_when_its_session_is_over(bench: Bench) -> None:
    await joined(bench, A)
    successor = bench.coordinator()
    await bench.pass_time(11)
    await successor.join(replace(A, incarnation=9), ttl=TTL)
    assert (await successor.view()).members["a"].incarnation == 9


async def test_a_dead_predecessor_is_replaced_at_once(bench: Bench) -> None:
    a = await joined(bench, A)
    old = by_shard(await a.acquire([0, 1]))
    successor = bench.coordinator()
    with pytest.raises(NodeNameTaken):
        await successor.join(replace(A, incarnation=9), ttl=TTL, replaces=[8, 7])
    await successor.join(replace(A, incarnation=9), ttl=TTL, replaces=[8, 1])
    new = by_shard(await successor.acquire([0, 1]))
    assert all(new[shard] > old[shard] for shard in old)
    with pytest.raises(SessionLost):
        await a.renew(A)


async def test_a_process_replaces_its_own_session(bench: Bench) -> None:
    a = await joined(bench, A)
    old = by_shard(await a.acquire([0]))
    await a.join(A, ttl=TTL)
    assert (await a.view()).held == {}
    assert by_shard(await a.acquire([0]))[0] > old[0]


async def test_of_many_processes_with_one_name_one_joins(bench: Bench) -> None:
    contenders = [(bench.coordinator(), replace(A, incarnation=10 + number)) for number in range(5)]
    results = await asyncio.gather(
        *(coordinator.join(member, ttl=TTL) for coordinator, member in contenders), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["NodeNameTaken"] * 4 + ["NoneType"]


# Leader and plan.


async def test_the_leader_is_the_eldest_session(bench: Bench) -> None:
    a, b, c = await joined(bench, A), await joined(bench, B), await joined(bench, C)
    assert (await c.view()).leader == "a"
    await a.leave()
    assert (await c.view()).leader == "b"
    await a.join(A, ttl=TTL)
    assert (await a.view()).leader == "b"
    await bench.expire("b")
    assert (await a.view()).leader == "c"
    with pytest.raises(SessionLost):
        await b.view()


async def test_a_plan_comes_back_as_it_was_written(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    plan = first_plan(a=[0, 1, 2, 5], b=[3, 4])
    await a.write_plan(plan)
    assert (await a.view()).plan == plan
    assert (await b.view()).plan == plan
    second = replace(plan, version=2, owners={0: "b"}, orders=Orders())
    await a.write_plan(second)
    assert (await b.view()).plan == second
    assert (await b.view(fresh=True)).plan == second


async def test_only_the_leader_writes(bench: Bench) -> None:
    await joined(bench, A)
    b = await joined(bench, B)
    with pytest.raises(NotLeader) as caught:
        await b.write_plan(first_plan(b=[0]))
    assert (caught.value.node, caught.value.leader) == ("b", "a")
    assert (await b.view()).plan is None


async def test_a_plan_replaces_the_version_before_it_and_no_other(bench: Bench) -> None:
    a = await joined(bench, A)
    await a.write_plan(first_plan(a=[0]))
    for version, found in ((1, 1), (3, 1)):
        with pytest.raises(PlanConflict) as caught:
            await a.write_plan(replace(first_plan(a=[1]), version=version))
        assert (caught.value.expected, caught.value.found) == (version - 1, found)
    plan = (await a.view()).plan
    assert plan is not None
    assert plan.owners == {0: "a"}


async def test_the_plan_outlives_every_session(bench: Bench) -> None:
    a = await joined(bench, A)
    await a.write_plan(first_plan(a=[0]))
    await a.leave()
    b = await joined(bench, B)
    assert (await b.view()).plan == first_plan(a=[0])
    await b.write_plan(replace(first_plan(b=[0]), version=2))


# Leases.


async def test_a_shard_is_leased_to_one_session_only(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    assert set(by_shard(await a.acquire([0, 1, 2]))) == {0, 1, 2}
    assert set(by_shard(await b.acquire([1, 2, 3]))) == {3}
    assert set((await a.view()).held) == {0, 1, 2}
    assert set((await b.view()).held) == {3}


async def test_acquiring_again_returns_the_same_leases(bench: Bench) -> None:
    a = await joined(bench, A)
    first = by_shard(await a.acquire([0, 1]))
    again = by_shard(await a.acquire([0, 1, 2]))
    assert {shard: again[shard] for shard in first} == first
    assert (await a.view()).held == again


async def test_acquiring_nothing_is_allowed(bench: Bench) -> None:
    a = await joined(bench, A)
    assert list(await a.acquire([])) == []
    await a.release([])


async def test_released_shards_are_free_and_later_leases_are_greater(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    history = by_shard(await a.acquire(range(8)))
    coordinators = [b, a]
    for turn in range(6):
        giver, taker = coordinators[(turn + 1) % 2], coordinators[turn % 2]
        await giver.release(list(history.values()))
        assert (await giver.view()).held == {}
        leases = by_shard(await taker.acquire(range(8)))
        assert all(leases[shard] > history[shard] for shard in range(8))
        history = leases


async def test_a_late_release_does_not_take_a_newer_lease(bench: Bench) -> None:
    a = await joined(bench, A)
    old = list(await a.acquire([0]))
    await a.release(old)
    new = by_shard(await a.acquire([0]))
    await a.release(old)
    assert (await a.view()).held == new


async def test_a_release_of_anothers_lease_does_nothing(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    leases = by_shard(await a.acquire([0]))
    await b.release(list(leases.values()))
    assert (await a.view()).held == leases


async def test_of_many_that_want_all_shards_each_shard_goes_to_one(bench: Bench) -> None:
    coordinators = [await joined(bench, Member(node=f"n{number}", incarnation=number + 1)) for number in range(5)]
    granted = await asyncio.gather(*(coordinator.acquire(range(64)) for coordinator in coordinators))
    shards = [lease.shard for leases in granted for lease in leases]
    assert sorted(shards) == list(range(64))


async def test_a_lost_sessions_shards_go_to_others_with_greater_leases(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    old = by_shard(await a.acquire([0, 1]))
    await bench.expire("a")
    await b.view()
    new = by_shard(await b.acquire([0, 1]))
    assert all(new[shard] > old[shard] for shard in old)


# Waiting.


async def test_waiting_ends_after_its_time(bench: Bench) -> None:
    a = await joined(bench, A)
    await a.wait_change(0.01)
    async with asyncio.timeout(5):
        await a.wait_change(0.01)


async def test_a_wake_ends_the_wait_in_progress_or_the_next_one(bench: Bench) -> None:
    a = await joined(bench, A)
    a.wake()
    async with asyncio.timeout(5):
        await a.wait_change(60)
    waiting = asyncio.create_task(a.wait_change(60))
    await asyncio.sleep(0)
    a.wake()
    async with asyncio.timeout(5):
        await waiting


# Ending the session of another.


async def test_an_evicted_session_is_over_and_its_leases_are_free_at_once(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    old = by_shard(await b.acquire([1, 2]))
    session = (await a.view()).sessions["b"]
    assert await a.evict("b", session.number)
    view = await a.view()
    assert (set(view.members), set(view.sessions)) == ({"a"}, {"a"})
    new = by_shard(await a.acquire([1, 2]))
    assert all(new[shard] > old[shard] for shard in (1, 2))
    for call in ("renew", "view", "acquire"):
        with pytest.raises(SessionLost):
            await (b.renew(B) if call == "renew" else do(b, call, old[1]))
    assert set((await a.view(fresh=True)).held) == {1, 2}


async def test_an_evicted_node_may_join_again_and_its_new_session_is_left_alone(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    first = (await a.view()).sessions["b"]
    assert await a.evict("b", first.number)
    assert not await a.evict("b", first.number)
    await b.join(B, ttl=TTL)
    second = (await a.view()).sessions["b"]
    assert second.number > first.number
    assert second.opened_at >= first.opened_at
    assert not await a.evict("b", first.number)
    assert not await a.evict("a", second.number)
    assert not await a.evict("nobody", second.number)
    assert set((await b.view()).members) == {"a", "b"}


async def test_a_leader_that_is_evicted_leads_no_more(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    assert await b.evict("a", (await b.view()).sessions["a"].number)
    assert (await b.view()).leader == "b"
    await b.write_plan(first_plan(b=[0]))
    with pytest.raises(SessionLost):
        await a.write_plan(replace(first_plan(a=[0]), version=2))
    await a.join(A, ttl=TTL)
    assert (await a.view()).leader == "b"


async def test_a_node_may_end_its_own_session_by_force(bench: Bench) -> None:
    a, b = await joined(bench, A), await joined(bench, B)
    assert await a.evict("a", (await a.view()).sessions["a"].number)
    with pytest.raises(SessionLost):
        await a.view()
    assert set((await b.view()).members) == {"b"}
