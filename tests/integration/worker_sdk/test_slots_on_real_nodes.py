"""Concurrency over several real nodes is exact: never more than there are slots, and none idle while a job is due."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from server.app import Node
from tests.integration.worker_sdk.conftest import Workers
from tests.support.nodes import finished, running_nodes, shared, submit
from tests.support.waiting import eventually
from worker_sdk import Worker

LIMIT = 8
JOB_S = 1.0


@pytest.fixture
async def nodes(database: str, tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with running_nodes(database, tmp_path, 3) as nodes:
        yield nodes


class Gauge:
    """A worker that measures how busy it is."""

    def __init__(self, address: str) -> None:
        self.worker = Worker(address, name="gauge", watchdog=0)
        self.spans: list[tuple[float, float]] = []
        self.running = 0
        self.most = 0
        self.most_held = 0

        @self.worker.handler("work", max_concurrency=LIMIT)
        async def work(payload: object) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            # Not even in line may there be more.
            self.most_held = max(self.most_held, self._held())
            began = time.monotonic()
            try:
                await asyncio.sleep(JOB_S)
            finally:
                self.running -= 1
                self.spans.append((began, time.monotonic()))

    def utilisation(self, jobs: int) -> float:
        """Return the busy share of the slots from the first start to the start of the last of so many jobs."""
        spans = sorted(self.spans)[:jobs]
        first, last = spans[0][0], spans[-1][0]
        return sum(min(end, last) - began for began, end in spans) / (LIMIT * (last - first))

    def _held(self) -> int:
        core = self.worker._core
        assert core is not None
        return len(core._ledger.running)


@pytest.fixture
async def gauge(nodes: list[Node], workers: Workers) -> Gauge:
    gauge = Gauge(nodes[0].address)
    await workers.start(gauge.worker)
    await eventually(lambda: len(gauge.worker.nodes) == 3, what="a session to each node")
    return gauge


async def load(node: Node, jobs: int) -> list[int]:
    """Submit jobs, at once, to a shard of a node."""
    return await submit(node, "work", jobs, shard=min(node.engine.ownership.epochs))


async def test_no_slot_idles_when_only_one_node_has_work(nodes: list[Node], gauge: Gauge) -> None:
    jobs = 6 * LIMIT
    await finished(nodes[0], await load(nodes[1], jobs), timeout=60)
    share = gauge.utilisation(jobs)
    print(f"utilisation with work on one node of three: {share:.1%}")
    assert share >= 0.9
    assert gauge.most == gauge.most_held == LIMIT


async def test_a_stream_that_begins_while_slots_are_in_use_gets_them_when_they_are_free(
    nodes: list[Node], gauge: Gauge
) -> None:
    """The node of the new stream has handed out none of what the worker reports, and sees none of it end."""
    first = await load(nodes[0], LIMIT)
    await eventually(lambda: gauge.running == LIMIT)
    [session] = nodes[1].engine.slots.sessions()
    session.link.close()
    await eventually(lambda: [one for one in nodes[1].engine.slots.sessions() if one is not session])
    assert gauge.running == LIMIT
    began_s = time.monotonic()
    second = await load(nodes[1], 2 * LIMIT)
    await finished(nodes[0], first + second, timeout=30)
    assert time.monotonic() - began_s < 3 * JOB_S + 2.0
    assert gauge.most == gauge.most_held == LIMIT


async def test_slots_are_exact_while_nodes_come_and_go(nodes: list[Node], gauge: Gauge) -> None:
    """Work on every node, one of which stops, so that its attempts are adopted; then work on one node, then none."""
    ids = [job_id for node in nodes for job_id in await load(node, 2 * LIMIT)]
    await eventually(lambda: len(gauge.spans) >= LIMIT, timeout_s=30)
    await nodes[2].stop()
    await eventually(lambda: shared(nodes[:2]), timeout_s=30)
    ids += await load(nodes[0], LIMIT)
    await finished(nodes[0], ids, timeout=60)
    assert len(gauge.spans) == len(ids)
    assert gauge.most == LIMIT
    assert gauge.most_held <= LIMIT
