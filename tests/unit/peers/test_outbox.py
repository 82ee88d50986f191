"""News on its way: one message at a time, bounded, dropped where nobody hears it."""

import asyncio
import logging
from collections.abc import Sequence

import grpc
import grpc.aio
import pytest

from server.engine.ports_peers import JobFinal, News
from server.peers.channels import UnknownPeer
from server.peers.outbox import MAX_BATCH, Outbox
from tests.support.waiting import eventually


class Peer:
    """Takes batches one by one, as far as it is open, or fails."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None
        self.under_way = 0
        self.most = 0

    async def send(self, node: str, news: Sequence[News]) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.open.wait()
            self.batches.append([one.job_id for one in news if isinstance(one, JobFinal)])
            if self.error is not None:
                raise self.error
        finally:
            self.under_way -= 1


def unavailable() -> grpc.aio.AioRpcError:
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, "away")


async def test_what_comes_up_while_a_message_is_under_way_goes_with_the_next() -> None:
    peer = Peer()
    outbox = Outbox("b", peer.send)
    outbox.put(JobFinal(1))
    await eventually(lambda: peer.under_way)
    for job_id in range(2, MAX_BATCH + 3):
        outbox.put(JobFinal(job_id))
    peer.open.set()
    await eventually(lambda: len(peer.batches) == 3)
    assert [len(batch) for batch in peer.batches] == [1, MAX_BATCH, 1]
    assert peer.most == 1
    # A task runs only while there is something to tell.
    await eventually(lambda: outbox._task is None)
    outbox.put(JobFinal(0))
    await eventually(lambda: peer.batches[-1] == [0])
    await outbox.close()


async def test_a_node_that_takes_nothing_costs_bounded_memory() -> None:
    peer = Peer()
    outbox = Outbox("b", peer.send, max_waiting=10)
    for job_id in range(100):
        outbox.put(JobFinal(job_id))
    await eventually(lambda: peer.under_way)
    assert outbox.dropped == 90
    await outbox.close()
    assert peer.under_way == 0


async def test_a_node_that_does_not_hear_is_left_alone_for_a_while_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    peer = Peer()
    peer.open.set()
    peer.error = unavailable()
    outbox = Outbox("b", peer.send)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for count in range(1, 5):
        outbox.put(JobFinal(count))
        await eventually(lambda: sum(map(len, peer.batches)) == count)  # noqa: B023 - awaited in this turn
    # Pauses of 50, 100 and 200 ms, each at least half as long.
    assert loop.time() - began > 0.175
    assert [record.getMessage() for record in caplog.records] == ["a node does not hear what this one tells it"]
    await eventually(lambda: outbox.dropped == 4)
    peer.error = None
    outbox.put(JobFinal(9))
    await eventually(lambda: peer.batches[-1] == [9])
    peer.error = RuntimeError("not foreseen")
    outbox.put(JobFinal(10))
    await eventually(lambda: len(caplog.records) == 2)
    await outbox.close()


async def test_nothing_is_kept_for_a_node_that_has_left() -> None:
    peer = Peer()
    peer.open.set()
    peer.error = UnknownPeer("b")
    outbox = Outbox("b", peer.send)
    for job_id in range(MAX_BATCH + 5):
        outbox.put(JobFinal(job_id))
    await eventually(lambda: outbox._task is None)
    assert (len(peer.batches), outbox.dropped) == (1, MAX_BATCH + 5)
