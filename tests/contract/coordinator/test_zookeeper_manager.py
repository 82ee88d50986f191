"""Managers on the coordinator on ZooKeeper: starting fast, fail-over, outages, sessions that all end at once."""

import asyncio
import time
from dataclasses import replace

import pytest

from server.embedded.zookeeper import TICK_MS
from shard_manager.events import Drained, LeaderChanged, SessionEnded, ShardLost, TroubleBegan, TroubleOver
from shard_manager.timings import ManagerTimings
from tests.contract.coordinator.benches import ZookeeperBench
from tests.support.zookeeper import ZookeeperServer
from tests.unit.shard_manager.cluster import TIMINGS, Node, Site, bounded, ms

TTL_S = 2.0
SHORT = replace(TIMINGS, session_ttl=ms(TTL_S * 1000), heartbeat=ms(100))


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_single_node_owns_64_shards_within_half_a_second(site: Site, zookeeper_bench: ZookeeperBench) -> None:
    took_s: list[float] = []
    # The best of a few starts, for the machine may be busy with something else.
    while len(took_s) < 6 and (not took_s or min(took_s) >= 0.5):
        node = site.node("a", coordinator=zookeeper_bench.coordinator(), shards=64, timings=ManagerTimings())
        began = time.monotonic()
        async with node as a:
            await a.owns(64)
            took_s.append(time.monotonic() - began)
            await bounded(a.manager.drain())
            assert a.events.all[-1] == Drained(node="a", left=True)
    print(f"cold start of 64 shards: {took_s}")
    assert min(took_s) < 0.5
    witness = zookeeper_bench.coordinator()
    async with site.node("b", coordinator=witness, shards=64) as b:
        await b.owns(64)


async def test_nodes_join_share_and_leave(site: Site, zookeeper_bench: ZookeeperBench) -> None:
    async with (
        site.node("a", coordinator=zookeeper_bench.coordinator(), max_moves=100) as a,
        site.node("b", coordinator=zookeeper_bench.coordinator()) as b,
    ):
        await a.owns(8)
        await b.owns(8)
        await bounded(a.manager.drain())
        await b.owns(16)
    assert site.fences.overlaps == []
    site.check()


async def test_a_killed_leaders_shards_move_when_its_session_is_over(
    site: Site, breakable_bench: ZookeeperBench
) -> None:
    async with site.node("b", coordinator=breakable_bench.coordinator(), timings=SHORT, max_moves=100) as b:
        await b.owns(16)
        async with site.node("a", coordinator=breakable_bench.coordinator(), timings=SHORT, max_moves=100) as a:
            await a.owns(8)
            await b.owns(8)
            killed_s = time.monotonic()
            await b.kill()
            await a.owns(16)
            took_s = time.monotonic() - killed_s
            assert a.events.of(LeaderChanged)[-1] == LeaderChanged(leader="a", previous="b")
    print(f"fail-over with sessions of {TTL_S} s: {took_s:.2f} s")
    assert TTL_S / 2 < took_s < TTL_S + TICK_MS / 1000 + 0.5
    site.check()


async def test_a_killed_node_that_is_started_again_on_its_host_is_back_at_once(
    site: Site, zookeeper_bench: ZookeeperBench
) -> None:
    timings = replace(TIMINGS, session_ttl=ms(10_000))
    async with site.node("a", coordinator=zookeeper_bench.coordinator(), timings=timings) as a:
        await a.owns(16)
        await a.kill()
    began = time.monotonic()
    async with site.node(
        "a", coordinator=zookeeper_bench.coordinator(), incarnation=2, replaces=[1], timings=timings
    ) as successor:
        await successor.owns(16)
        assert time.monotonic() - began < 3
        assert set(successor.manager.owned.values()) == {2}


async def both_loops_in_trouble(node: Node) -> None:
    await node.events.until(lambda: len(node.events.of(TroubleBegan)) >= 2, "both loops in trouble")


async def out_of_trouble(node: Node) -> None:
    await node.events.until(lambda: len(node.events.of(TroubleOver)) == len(node.events.of(TroubleBegan)))


async def a_session_more_ended(node: Node, before: int) -> None:
    await node.events.until(lambda: len(node.events.of(SessionEnded)) > before, "the end of the session")


async def test_an_outage_longer_than_the_session_costs_nothing(
    site: Site, breakable_bench: ZookeeperBench, breakable_zookeeper: ZookeeperServer
) -> None:
    async with (
        site.node("a", coordinator=breakable_bench.coordinator(), timings=SHORT, max_moves=100) as a,
        site.node("b", coordinator=breakable_bench.coordinator(), timings=SHORT) as b,
    ):
        await a.owns(8)
        await b.owns(8)
        before = [dict(node.manager.owned) for node in (a, b)]
        seen = [len(node.events.of(ShardLost, SessionEnded)) for node in (a, b)]
        breakable_zookeeper.kill9()
        try:
            await asyncio.gather(*(both_loops_in_trouble(node) for node in (a, b)))
            await asyncio.sleep(TTL_S + 0.5)
        finally:
            await asyncio.to_thread(breakable_zookeeper.start)
        await asyncio.gather(*(out_of_trouble(node) for node in (a, b)))
        assert [dict(node.manager.owned) for node in (a, b)] == before
        assert [len(node.events.of(ShardLost, SessionEnded)) for node in (a, b)] == seen
        # And fail-over works again.
        await b.kill()
        await a.owns(16)
    assert site.fences.overlaps == []
    site.check()


async def test_when_all_sessions_end_at_once_everybody_starts_over_with_its_own_shards(
    site: Site, zookeeper_bench: ZookeeperBench
) -> None:
    timings = replace(TIMINGS, loss_guard=ms(3000))
    coordinators = [zookeeper_bench.coordinator() for _ in range(2)]
    async with (
        site.node("a", coordinator=coordinators[0], timings=timings, max_moves=100) as a,
        site.node("b", coordinator=coordinators[1], timings=timings) as b,
    ):
        await a.owns(8)
        await b.owns(8)
        before = [dict(node.manager.owned) for node in (a, b)]
        ended = [len(node.events.of(SessionEnded)) for node in (a, b)]
        await asyncio.gather(zookeeper_bench.expire("a"), zookeeper_bench.expire("b"))
        await asyncio.gather(*(a_session_more_ended(*each) for each in zip((a, b), ended, strict=True)))
        await a.owns(8)
        await b.owns(8)
        for node, owned in zip((a, b), before, strict=True):
            assert set(node.owned) == set(owned)
            assert all(node.manager.owned[shard] > epoch for shard, epoch in owned.items())
    assert site.fences.overlaps == []
    site.check()
