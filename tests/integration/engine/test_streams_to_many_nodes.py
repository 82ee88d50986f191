"""A worker has a stream to every node. Whether it lives, and who has its name, is a question to all of them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from server.app import Node
from server.domain.job import Backoff
from shardwheel.v1 import worker_service_pb2 as pb
from shardwheel.v1.job_service_pb2 import CancelJobRequest
from shardwheel.v1.job_service_pb2_grpc import JobServiceStub
from tests.support.nodes import history, row, running_nodes, submit
from tests.support.raw_worker import RawWorker
from tests.support.waiting import eventually

AT_ONCE = Backoff(max_attempts=9, initial=timedelta(0), maximum=timedelta(0))
DEFAULTS = {"heartbeat": "3s", "worker_lease": "15s", "reset_grace": "5s"}


@contextlib.asynccontextmanager
async def connected(
    nodes: Sequence[Node], name: str, *, slots: int = 0, incarnation: int | None = None
) -> AsyncIterator[list[RawWorker]]:
    """A worker with a stream to each node, in their order."""
    first = RawWorker(nodes[0].address, handlers={"mail": slots or 1}, name=name, incarnation=incarnation)
    streams = [first, *(first.beside(node.address) for node in nodes[1:])]
    async with contextlib.AsyncExitStack() as stack:
        for stream in streams:
            stack.push_async_callback(stream.break_stream)
            await stream.connect(credit=bool(slots))
        yield streams


async def running_on(node: Node, stream: RawWorker, count: int = 1) -> list[pb.Assignment]:
    """Jobs of a node's shards that a worker has begun."""
    shard = min(node.engine.ownership.epochs)
    stream.credit({"mail": count})
    await submit(node, "mail", count, shard=shard, backoff=AT_ONCE)
    return await stream.next_jobs(count)


async def live_incarnations(node: Node, name: str) -> list[int]:
    rows = await node.database.fetch("SELECT incarnation FROM workers WHERE name = %s AND ended_at IS NULL", (name,))
    return [incarnation for (incarnation,) in rows]


async def refused(stream: RawWorker) -> bool:
    """Try to connect; whether the name was taken."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stream.connect(credit=False)
        return False
    await stream.break_stream()
    assert stream.error is not None
    # The library says "internal" if it was still writing when the refusal came.
    assert stream.error.code() in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INTERNAL)
    return True


async def test_a_worker_cut_off_from_one_node_is_not_lost(database: str, tmp_path: Path) -> None:
    """Its owner cannot hear it, another node does: the attempt goes on, and ends through the other node."""
    async with running_nodes(database, tmp_path, 2) as [owner, other], connected([owner, other], "w") as streams:
        [job] = await running_on(owner, streams[0])
        await streams[0].break_stream()
        await asyncio.sleep(2 * owner.config.worker_lease.total_seconds())
        found = await row(owner, job.job_id)
        assert found is not None
        assert (found.state, found.open_claim) == (1, job.claim)
        streams[1].complete([job])
        assert await streams[1].acked(job) == pb.ResultAck.ACCEPTED
        [kept] = await history(owner, job.job_id)
        assert (kept.state, kept.attempt) == (3, 1)


async def test_an_owner_asks_and_stops_through_another_node(database: str, tmp_path: Path) -> None:
    """It cannot reach the worker: one attempt got lost with the stream, the other one is to be cancelled."""
    async with running_nodes(database, tmp_path, 2) as [owner, other], connected([owner, other], "w") as streams:
        [lost, kept] = await running_on(owner, streams[0], 2)
        await streams[0].break_stream()
        del streams[0].running[lost.job_id, lost.claim]
        async with connected([owner], "another", slots=2) as [another]:
            [again] = await another.next_jobs(1, timeout=15)
            assert (again.job_id, again.attempt, again.claim) == (lost.job_id, 1, 2)
            async with grpc.aio.insecure_channel(owner.address) as channel:
                await JobServiceStub(channel).CancelJob(CancelJobRequest(id=kept.job_id), timeout=5)
            await eventually(lambda: streams[1].cancels)
            [cancel] = streams[1].cancels
            assert (cancel.attempt.job_id, cancel.reason) == (kept.job_id, pb.CANCEL_REQUESTED)
            streams[1].result(kept, stopped=pb.Stopped(reason=pb.CANCEL_REQUESTED))
            assert await streams[1].acked(kept) == pb.ResultAck.ACCEPTED
            assert not another.jobs
            another.complete([again])
            assert await another.acked(again) == pb.ResultAck.ACCEPTED
        await eventually(lambda: not owner.engine.registry.of_shard(lost.job_id & 0xFFF))


async def test_a_dispatch_that_is_still_in_a_socket_when_its_shard_moves_is_given_back(
    database: str, tmp_path: Path
) -> None:
    """The new owner requeues what the report does not name; the old message, read at last, changes nothing."""
    async with running_nodes(database, tmp_path, 2) as [old, new], connected([old, new], "w") as streams:
        [unread] = await running_on(old, streams[0])
        del streams[0].running[unread.job_id, unread.claim]
        streams[1].credit({"mail": 1})
        await old.manager.drain()
        [job] = await streams[1].next_jobs(1, timeout=15)
        assert (job.job_id, job.attempt, job.claim) == (unread.job_id, 1, unread.claim + 1)
        assert job.epoch > unread.epoch
        # The stream to the old owner still stands.
        streams[0].result(unread, interrupted=pb.Interrupted())
        assert await streams[0].acked(unread) == pb.ResultAck.STALE
        streams[1].complete([job])
        assert await streams[1].acked(job) == pb.ResultAck.ACCEPTED
        [kept] = await history(new, job.job_id)
        assert (kept.state, kept.attempt) == (3, 1)


async def test_what_a_worker_must_not_run_goes_back_without_burning_a_try(database: str, tmp_path: Path) -> None:
    """A worker that has seen a higher epoch gives an assignment back on the stream on which it came."""
    async with running_nodes(database, tmp_path, 2) as [owner, other], connected([owner, other], "w") as streams:
        [job] = await running_on(owner, streams[0])
        streams[0].result(job, interrupted=pb.Interrupted())
        [again] = await streams[0].next_jobs(1)
        assert (again.job_id, again.attempt, again.claim) == (job.job_id, 1, 2)
        # Its slot came back with it, and nothing was counted twice.
        [session] = owner.engine.slots.sessions()
        assert list(session.used.values()) == [1]


async def test_a_killed_worker_is_lost_after_the_grace_although_its_lease_is_fresh(
    database: str, tmp_path: Path
) -> None:
    """With the default times: a job of each node runs elsewhere within 6 s."""
    async with (
        running_nodes(database, tmp_path, 3, **DEFAULTS) as nodes,
        connected(nodes, "killed") as killed,
        connected(nodes, "other", slots=1) as others,
    ):
        for other in others:
            other.credit({"mail": 0})
        for node, stream in zip(nodes, killed, strict=True):
            await running_on(node, stream)
        for other in others:
            other.credit({"mail": 1})
        # The worst moment: one node's stream is gone already, and another one speaks for the worker once more.
        await killed[0].break_stream()
        await eventually(lambda: len(nodes[0].engine.slots.sessions()) == 1)
        await asyncio.sleep(0.1)
        await nodes[1].engine.liveness.renew()
        await asyncio.gather(*(stream.break_stream() for stream in killed[1:]))
        killed_s = time.monotonic()
        took_s = []
        for other in others:
            await other.next_jobs(1, timeout=10)
            took_s.append(time.monotonic() - killed_s)
    print(f"jobs of a killed worker run elsewhere after {[round(one, 2) for one in took_s]} s")
    assert min(took_s) >= 5.0
    assert max(took_s) <= 6.0


async def test_a_blip_of_three_seconds_loses_nothing(database: str, tmp_path: Path) -> None:
    async with (
        running_nodes(database, tmp_path, 3, **DEFAULTS) as nodes,
        connected(nodes, "w") as streams,
        connected(nodes, "other", slots=1) as others,
    ):
        for other in others:
            other.credit({"mail": 0})
        jobs = [(await running_on(node, stream))[0] for node, stream in zip(nodes, streams, strict=True)]
        for other in others:
            other.credit({"mail": 1})
        await asyncio.gather(*(stream.break_stream() for stream in streams))
        await asyncio.sleep(3.0)
        for stream in streams:
            await stream.connect(credit=False)
        await asyncio.sleep(4.0)
        assert not [job for other in others for job in other.jobs]
        streams[0].complete(jobs)
        for job in jobs:
            assert await streams[0].acked(job) == pb.ResultAck.ACCEPTED


@pytest.mark.parametrize(
    ("heartbeat", "lease", "bound_s"),
    [("600ms", "3s", 4.5), pytest.param("3s", "15s", 17.0, marks=pytest.mark.soak)],
)
async def test_a_vanished_host_is_lost_with_its_lease(
    database: str, tmp_path: Path, heartbeat: str, lease: str, bound_s: float
) -> None:
    """No stream is reset: nobody hears anything any more."""
    settings = {"heartbeat": heartbeat, "worker_lease": lease, "reset_grace": "1s" if bound_s < 10 else "5s"}
    async with (
        running_nodes(database, tmp_path, 3, **settings) as nodes,
        connected(nodes, "vanished") as vanished,
        connected(nodes, "other", slots=1) as others,
    ):
        for other in others:
            other.credit({"mail": 0})
        for node, stream in zip(nodes, vanished, strict=True):
            await running_on(node, stream)
        for node in nodes:
            await eventually(node.engine.liveness.may_reap_by_lease, timeout_s=40)
        for other in others:
            other.credit({"mail": 1})
        for stream in vanished:
            stream.freeze()
        vanished_s = time.monotonic()
        for other in others:
            await other.next_jobs(1, timeout=30)
        took_s = time.monotonic() - vanished_s
    print(f"jobs of a vanished host run elsewhere after {took_s:.2f} s with a lease of {lease}")
    assert took_s <= bound_s


async def test_a_name_belongs_to_the_incarnation_that_some_node_hears(database: str, tmp_path: Path) -> None:
    async with running_nodes(database, tmp_path, 2) as [one, other]:
        older = RawWorker(one.address, handlers={"mail": 1}, name="w")
        await older.connect()
        newer = RawWorker(other.address, handlers={"mail": 1}, name="w")
        assert await refused(newer)
        # Cut off from the one, connected to the other: still alive.
        beside = older.beside(other.address)
        await beside.connect()
        await older.break_stream()
        newer.address = one.address
        assert await refused(newer)
        assert await live_incarnations(one, "w") == [older.incarnation]
        # Dead: the name is free at once, or as soon as no node can have heard it.
        await beside.break_stream()
        started_s = time.monotonic()
        assert not await refused(newer)
        assert time.monotonic() - started_s < 2.0
        assert await live_incarnations(one, "w") == [newer.incarnation]
        await newer.break_stream()


async def test_of_two_incarnations_that_come_at_once_one_is_served(database: str, tmp_path: Path) -> None:
    async with running_nodes(database, tmp_path, 2) as nodes:
        for number in range(6):
            # Three times to one node, three times to both.
            pair = [
                RawWorker(nodes[position * (number % 2)].address, handlers={"mail": 1}, name=f"w{number}")
                for position in range(2)
            ]
            outcomes = await asyncio.gather(*(refused(one) for one in pair))
            assert sorted(outcomes) == [False, True]
            winner = pair[outcomes.index(False)]
            assert await live_incarnations(nodes[0], f"w{number}") == [winner.incarnation]
            await winner.break_stream()


async def test_a_stream_of_an_incarnation_that_has_ended_is_closed(database: str, tmp_path: Path) -> None:
    """Whatever ended it: without a lease it must not be given jobs."""
    async with running_nodes(database, tmp_path, 2) as nodes, connected(nodes, "w") as streams:
        await nodes[0].database.run("UPDATE workers SET ended_at = now(), end_reason = 'superseded'", api=True)
        for node in nodes:
            await eventually(lambda node=node: not node.engine.slots.sessions())  # type: ignore[misc]
        assert await refused(streams[0])
