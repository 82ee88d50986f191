"""A worker in a cluster of several nodes: one session each, slots split without ever exceeding the limit."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count

import pytest

from shardwheel.v1.worker_service_pb2 import ResultAck
from tests.integration.worker_sdk.conftest import Workers
from tests.support.scripted_server import ScriptedServer, ScriptedSession, assignment
from tests.support.waiting import eventually
from worker_sdk import Context, Worker

LIMIT = 6


@pytest.fixture
async def nodes() -> AsyncIterator[list[ScriptedServer]]:
    """Three nodes."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedServer(f"node-{i}")) for i in range(3)]


class Pool:
    """A worker whose handlers are held, and counted."""

    def __init__(self, address: str) -> None:
        self.worker = Worker(address, name="w", watchdog=0)
        self.running = 0
        self.most = 0
        self.started: Counter[int] = Counter()
        self._release: dict[int, asyncio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

        @self.worker.handler("work", max_concurrency=LIMIT)
        async def work(payload: object, ctx: Context) -> None:
            self._loop = asyncio.get_running_loop()
            self.running += 1
            self.most = max(self.most, self.running)
            self._release[ctx.job_id] = asyncio.Event()
            self.started[ctx.job_id] += 1
            try:
                await self._release[ctx.job_id].wait()
            finally:
                self.running -= 1

    def release(self, *job_ids: int) -> None:
        assert self._loop is not None
        for job_id in job_ids:
            self._loop.call_soon_threadsafe(self._release[job_id].set)


async def connect_all(workers: Workers, pool: Pool, nodes: list[ScriptedServer]) -> list[ScriptedSession]:
    """Start the worker at the first node, and let that tell of the others."""
    first = await workers.connect(pool.worker, nodes[0])
    # One node alone has every slot.
    await first.expect_credit("work", LIMIT)
    await first.send_members({node.node: node.address for node in nodes})
    return [first, *[await node.next_session() for node in nodes[1:]]]


def shares(sessions: list[ScriptedSession]) -> list[int]:
    return [session.credit.get("work", 0) for session in sessions]


async def test_a_worker_follows_the_members_and_shares_its_slots(nodes: list[ScriptedServer], workers: Workers) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    await sessions[1].send_demand("work", 50)
    await eventually(lambda: shares(sessions) == [0, 6, 0])
    await sessions[0].send_demand("work", 50)
    await eventually(lambda: shares(sessions) == [3, 3, 0])
    assert sorted(pool.worker.nodes) == ["node-0", "node-1", "node-2"]
    assert [len(node.sessions) for node in nodes] == [1, 1, 1]


async def test_a_slot_moves_only_after_the_node_has_let_go_of_it(nodes: list[ScriptedServer], workers: Workers) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    nodes[0].behaviour.ack_credits = False
    await sessions[1].send_demand("work", 50)
    # Node 2 lets go of its slots, node 0 has not said so.
    await eventually(lambda: shares(sessions) == [0, 4, 0])
    # It hands out two jobs on its old credit, which the worker has to have slots for.
    await sessions[0].send_jobs(assignment(1, "work"), assignment(2, "work"))
    await eventually(lambda: pool.running == 2)
    await sessions[1].send_jobs(*(assignment(i, "work") for i in range(3, 7)))
    await eventually(lambda: pool.running == LIMIT)
    pool.release(1, 2)
    await sessions[0].expect_results(2)
    assert shares(sessions) == [0, 4, 0]
    latest = sessions[0].of_kind("credit")[-1].credit.sequence
    await sessions[0].send_credit_ack(latest)
    await eventually(lambda: shares(sessions) == [0, 6, 0])
    assert pool.most == LIMIT


async def test_the_jobs_of_a_lost_node_keep_their_slots_and_their_results_go_elsewhere(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    in_shard_5 = (1 << 12) | 5
    await sessions[2].send_jobs(assignment(in_shard_5, "work", epoch=1), assignment(99, "work"))
    await eventually(lambda: pool.running == 2)
    await nodes[2].stop()
    await eventually(lambda: shares(sessions[:2]) == [2, 2])
    # Node 1 takes over a shard, with one of the two attempts. It has not handed it out, and so does not count it.
    await sessions[1].send_owner_hello(1, {5: 2})
    assert [ref.job_id for ref in (await sessions[1].expect_report(1)).running] == [in_shard_5]
    await sessions[1].send_demand("work", 50)
    await eventually(lambda: shares(sessions[:2]) == [0, 4])
    pool.release(in_shard_5, 99)
    results = [*await sessions[1].expect_results(1)]
    assert results[0].attempt.job_id == in_shard_5
    await eventually(lambda: len(sessions[0].of_kind("results")) + len(sessions[1].of_kind("results")) == 2)
    await eventually(lambda: shares(sessions[:2]) == [0, 6])
    assert pool.most <= LIMIT


async def test_an_older_epoch_is_refused_on_every_stream_and_given_back(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    """The old owner's message was under way when the new owner introduced itself."""
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    job = (1 << 12) | 5
    await sessions[1].send_owner_hello(1, {5: 2})
    await sessions[1].expect_report(1)
    await sessions[0].send_jobs(assignment(job, "work", epoch=1))
    [result] = await sessions[0].expect_results(1)
    assert (result.attempt.job_id, result.WhichOneof("outcome")) == (job, "interrupted")
    await sessions[1].send_jobs(assignment(job, "work", claim=2, epoch=2))
    await eventually(lambda: pool.started[job] == 1)
    assert pool.running == 1


async def test_what_a_worker_has_disclaimed_is_refused_when_it_comes(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    """One node asks on behalf of another, whose message is under way."""
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await sessions[0].send_jobs(assignment(1, "work"))
    await eventually(lambda: pool.running == 1)
    await sessions[1].send_audit(7, (1, 1), (2, 1))
    assert [ref.job_id for ref in (await sessions[1].expect_report(7)).running] == [1]
    await sessions[0].send_jobs(assignment(2, "work", claim=1), assignment(3, "work", claim=1))
    [result] = await sessions[0].expect_results(1)
    assert (result.attempt.job_id, result.WhichOneof("outcome")) == (2, "interrupted")
    await sessions[2].send_jobs(assignment(2, "work", claim=2))
    await eventually(lambda: pool.running == 3)
    assert pool.started == {1: 1, 2: 1, 3: 1}


async def test_a_node_that_is_about_to_stop_loses_its_credit(nodes: list[ScriptedServer], workers: Workers) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    await sessions[0].send_jobs(assignment(1, "work"))
    await eventually(lambda: pool.running == 1)
    await sessions[0].send_drain()
    # The running job keeps its slot.
    await eventually(lambda: sessions[0].credit == {"work": 0} and sum(shares(sessions)) == LIMIT - 1)
    pool.release(1)
    await eventually(lambda: shares(sessions) == [0, 3, 3])
    # Its result goes to a node that stays.
    assert [len(session.of_kind("results")) for session in sessions].count(1) == 1
    assert not sessions[0].of_kind("results")


async def test_the_stream_to_a_node_that_left_is_closed_when_it_owes_nothing(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    await sessions[2].send_jobs(assignment(1, "work"), assignment(2, "work"))
    await eventually(lambda: pool.running == 2)
    nodes[2].behaviour.ack_results = None
    pool.release(1)
    [unacknowledged] = await sessions[2].expect_results(1)
    everyone = {node.node: node.address for node in nodes}
    # One that has lost touch with the others still takes itself for a member.
    await sessions[2].send_members(everyone)
    for session in sessions[:2]:
        await session.send_members({name: everyone[name] for name in ("node-0", "node-1")})
    await eventually(lambda: sum(shares(sessions[:2])) == LIMIT - 1 and sessions[2].credit == {"work": 0})
    pool.release(2)
    await eventually(lambda: sum(shares(sessions[:2])) == LIMIT)
    assert len(sessions[0].of_kind("results")) + len(sessions[1].of_kind("results")) == 1
    await asyncio.sleep(1.5)
    assert sorted(pool.worker.nodes) == ["node-0", "node-1", "node-2"]
    await sessions[2].send_acks([unacknowledged.attempt], ResultAck.ACCEPTED)
    await eventually(lambda: sorted(pool.worker.nodes) == ["node-0", "node-1"])
    assert not sessions[2].of_kind("goodbye")


async def test_a_node_that_left_and_is_back_is_given_jobs_again(nodes: list[ScriptedServer], workers: Workers) -> None:
    """It had lost its session with the coordinator, and nothing else: its stream was never closed."""
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    await sessions[2].send_jobs(assignment(1, "work"))
    await eventually(lambda: pool.running == 1)
    nodes[2].behaviour.ack_results = None
    pool.release(1)
    await sessions[2].expect_results(1)
    everyone = {node.node: node.address for node in nodes}
    for session in sessions[:2]:
        await session.send_members({name: everyone[name] for name in ("node-0", "node-1")})
    await eventually(lambda: sessions[2].credit == {"work": 0} and sum(shares(sessions[:2])) == LIMIT)
    for session in sessions:
        await session.send_members(everyone)
    await sessions[2].send_demand("work", 50)
    await eventually(lambda: sessions[2].credit == {"work": LIMIT}, what="slots for the node that is back")
    assert len(nodes[2].sessions) == 1


async def test_a_node_that_is_about_to_stop_gets_no_credit_for_being_a_member(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    await sessions[2].send_drain()
    await eventually(lambda: shares(sessions) == [3, 3, 0])
    for session in sessions:
        await session.send_members({node.node: node.address for node in nodes})
    await sessions[2].send_demand("work", 50)
    await asyncio.sleep(1.2)
    assert shares(sessions) == [3, 3, 0]


async def test_a_node_that_another_one_knows_is_a_member_whatever_the_third_one_says(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    pool = Pool(nodes[0].address)
    sessions = await connect_all(workers, pool, nodes)
    await eventually(lambda: shares(sessions) == [2, 2, 2])
    await sessions[1].send_members({node.node: node.address for node in nodes})
    # The third one has lost touch with the cluster, then it has just started.
    for known in (nodes[1:], nodes[2:]):
        await sessions[2].send_members({node.node: node.address for node in known})
        await asyncio.sleep(1.2)
    assert shares(sessions) == [2, 2, 2]
    assert sorted(pool.worker.nodes) == ["node-0", "node-1", "node-2"]


async def test_the_cluster_is_found_again_through_the_first_address(
    nodes: list[ScriptedServer], workers: Workers
) -> None:
    pool = Pool(f"127.0.0.1:9,{nodes[0].address}")
    first = await workers.connect(pool.worker, nodes[0])
    # The members' addresses lead nowhere, as behind a proxy; the session goes on.
    await first.send_members({"node-0": "127.0.0.1:9"})
    await first.reset()
    again = await nodes[0].next_session()
    await again.expect_credit("work", LIMIT)
    assert pool.worker.nodes == ["node-0"]


class Dispatcher:
    """A node that hands out as many jobs as its credit allows, at every moment."""

    def __init__(self, node: ScriptedServer, first_id: int) -> None:
        self.node = node
        self.handed_out = 0
        self._next_id = first_id
        self._open: set[int] = set()
        self._session = node.sessions[-1]

    @property
    def outstanding(self) -> int:
        """Jobs handed out and not reported back. A broken stream has no credit, and its unread jobs are discarded."""
        if self._session.ended.is_set():
            return 0
        results = [item for request in self._session.of_kind("results") for item in request.results.results]
        return len(self._open - {result.attempt.job_id for result in results})

    async def step(self) -> None:
        """Use up the credit, and ask for more."""
        if self.node.sessions[-1] is not self._session:
            # What came on the old stream counts there alone; its results may even come to another node.
            self._session = self.node.sessions[-1]
            self._open.clear()
        free = self._session.credit.get("work", 0) - self.outstanding
        if free > 0 and not self._session.ended.is_set():
            jobs = [assignment(self._next_id + i, "work") for i in range(free)]
            self._next_id += free
            self.handed_out += free
            self._open |= {job.job_id for job in jobs}
            await self._session.send_jobs(*jobs)
        await self._session.send_demand("work", 5)


async def test_slots_are_never_exceeded_while_nodes_come_and_go(nodes: list[ScriptedServer], workers: Workers) -> None:
    pool = Pool(nodes[0].address)
    await connect_all(workers, pool, nodes)
    dispatchers = [Dispatcher(node, 10_000 * i + 1) for i, node in enumerate(nodes)]
    released: set[int] = set()
    most = 0
    deadline = time.monotonic() + 60
    # On a busy machine it takes more turns until the worker is full.
    for turn in count():
        if turn >= 100 and pool.most == LIMIT and all(item.handed_out > 10 for item in dispatchers):
            break
        assert time.monotonic() < deadline, f"at most {pool.most} of {LIMIT} slots were used"
        for dispatcher in dispatchers:
            await dispatcher.step()
            most = max(most, sum(item.outstanding for item in dispatchers))
        ready = [job_id for job_id in list(pool.started) if job_id not in released][:3]
        if ready:
            pool.release(*ready)
            released.update(ready)
        if turn < 100 and turn % 30 == 10:
            await nodes[turn // 30 % 3].sessions[-1].reset()
        await asyncio.sleep(0.01)
    assert most == LIMIT
    assert pool.most == LIMIT
    assert max(pool.started.values()) == 1
    assert all(dispatcher.handed_out > 10 for dispatcher in dispatchers)
