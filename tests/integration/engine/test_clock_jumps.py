"""The database's clock jumps: nobody is taken for dead, or superseded, who had no time to do anything about it."""

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from server.app import Node
from server.domain.job import Backoff, TimeLimits
from shardwheel.v1 import worker_service_pb2 as pb
from tests.support.nodes import QUICK, running_node, submit
from tests.support.raw_worker import raw_worker
from tests.support.waiting import eventually

AT_ONCE = Backoff(max_attempts=4, initial=timedelta(0), maximum=timedelta(0))
KILL_GRACE_S = float(QUICK["kill_grace"].removesuffix("ms")) / 1000


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(database, tmp_path) as node:
        yield node


async def test_an_attempt_is_told_to_stop_before_it_is_superseded(node: Node) -> None:
    """A jump of five minutes makes it late by more than the grace at one blow."""
    async with raw_worker(node.address, {"mail": 2}) as worker:
        [job_id] = await submit(node, "mail", backoff=AT_ONCE, limits=TimeLimits(attempt=timedelta(minutes=1)))
        await worker.next_jobs(1)
        jump = "UPDATE jobs SET timeout_at = timeout_at - interval '5 min', started_at = started_at - interval '5 min'"
        await node.database.run(jump)
        await eventually(lambda: worker.cancels, what="word to stop")
        told = time.monotonic()
        assert worker.cancels[0].reason == pb.CANCEL_TIMEOUT
        [again] = await worker.next_jobs(1)
        assert (again.job_id, again.claim) == (job_id, 2)
        assert time.monotonic() - told >= 0.8 * KILL_GRACE_S
