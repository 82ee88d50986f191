"""A kill -9 of Apache Kafka itself, in the middle of everything: every job runs, and once in the ordinary case."""

import asyncio
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from benchmarks.kafka.apache import ApacheKafka
from tests.support.kafka import publish
from tests.support.nodes import finished, history, running_nodes, submit
from tests.support.waiting import eventually
from worker_sdk import Context, Worker

JOBS = 3000

pytestmark = pytest.mark.soak


async def test_kill_9_of_the_broker_loses_no_job(database: str, tmp_path: Path) -> None:
    runs: Counter[int] = Counter()
    with ApacheKafka(tmp_path / "kafka") as broker:
        async with running_nodes(database, tmp_path, 2, kafka=broker.address) as nodes:
            handler, _ = await publish(nodes[0], queue_timeout=timedelta(seconds=20))
            workers = [_worker(f"w{number}", handler, runs) for number in range(2)]
            for worker in workers:
                worker.configure(address=nodes[0].address, kafka=broker.address)
                await asyncio.to_thread(worker.start)
            try:
                ids = await submit(nodes[0], handler, JOBS)
                for part in (0.1, 0.4):
                    await eventually(partial(_ran, runs, part), timeout_s=120, what="jobs that ran")
                    broker.kill()
                    ids += await submit(nodes[1], handler, 100)
                    await asyncio.to_thread(broker.start)
                await finished(nodes[0], ids, timeout=300)
            finally:
                for worker in workers:
                    await asyncio.to_thread(worker.stop, 0.0)
            assert set(runs) == set(ids)
            again = [job_id for job_id, count in runs.items() if count > 1]
            # What ran is known by its claim: a broker that dies repeats messages, and each repetition is refused.
            assert again == []
            assert {one.state for job_id in ids[:50] for one in await history(nodes[0], job_id)} == {3}


def _ran(runs: "Counter[int]", part: float) -> bool:
    return len(runs) > part * JOBS


def _worker(name: str, handler: str, runs: "Counter[int]") -> Worker:
    worker = Worker(name=name, watchdog=0)

    @worker.handler(handler, max_concurrency=20)
    async def work(payload: bytes, ctx: Context) -> None:
        runs[ctx.job_id] += 1
        await asyncio.sleep(0.02)

    return worker
