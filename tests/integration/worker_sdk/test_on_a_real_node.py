"""The SDK's worker on a real node, where it is hard to be taken for alive."""

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.worker_sdk.conftest import Workers
from tests.support.idle_proxy import IdleProxy
from tests.support.nodes import configured_node, finished, history, running_node, shared, submit
from tests.support.raw_worker import RawWorker
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually
from worker_sdk import Context, Worker

LEASE_S = 2.0


async def test_a_handler_that_blocks_its_loop_for_longer_than_the_lease_is_not_run_twice(
    database: str, tmp_path: Path, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """C14: the worker stays alive, and says what is wrong."""
    runs: Counter[int] = Counter()

    def blocking(name: str, address: str) -> Worker:
        worker = Worker(address, name=name, blocked_after=0.3)

        @worker.handler("block", max_concurrency=1)
        async def block(payload: object, ctx: Context) -> None:
            runs[ctx.job_id] += 1
            time.sleep(3 * LEASE_S)  # noqa: ASYNC251 - what must not be done is the point of this test

        return worker

    async with running_node(database, tmp_path, worker_lease=f"{LEASE_S}s") as node:
        await workers.start(blocking("one", node.address))
        await workers.start(blocking("other", node.address))
        await eventually(lambda: len(node.engine.slots.sessions()) == 2)
        [job_id] = await submit(node, "block")
        await finished(node, [job_id], timeout=30)
        assert runs == {job_id: 1}
        assert [one.attempt for one in await history(node, job_id)] == [1]
        assert any("event loop blocked" in record.getMessage() for record in caplog.records)
        await workers.stop_all()


@pytest.mark.parametrize(
    ("patience_s", "idle_s", "heartbeat"),
    [(1.5, 6.0, "400ms"), pytest.param(60.0, 600.0, "3s", marks=pytest.mark.soak)],
)
async def test_an_idle_stream_survives_a_proxy_that_wants_to_see_data(
    database: str, tmp_path: Path, workers: Workers, patience_s: float, idle_s: float, heartbeat: str
) -> None:
    """C16: the proxy drops streams without DATA frames and passes no PING."""
    settings = {"heartbeat": heartbeat, "worker_lease": "15s", "reset_grace": "5s"}
    async with (
        running_node(database, tmp_path, **settings) as node,
        IdleProxy(node.address, patience_s=patience_s) as proxy,
    ):
        worker = Worker(proxy.address, name="w", watchdog=0)

        @worker.handler("h")
        async def handle(payload: object) -> None:
            await asyncio.sleep(0)

        await workers.start(worker)
        await eventually(lambda: node.engine.slots.sessions())
        [session] = node.engine.slots.sessions()
        await asyncio.sleep(idle_s)
        print(f"idle for {idle_s:g} s behind a proxy with a patience of {patience_s:g} s; {proxy.pings} PINGs dropped")
        assert (proxy.connections, proxy.cut) == (1, 0)
        assert node.engine.slots.sessions() == [session]
        await finished(node, await submit(node, "h"))
        await workers.stop_all()


async def test_the_proxy_cuts_a_stream_on_which_nobody_speaks(database: str, tmp_path: Path) -> None:
    async with (
        running_node(database, tmp_path, worker_lease="15s") as node,
        IdleProxy(node.address, patience_s=1.0) as proxy,
    ):
        mute = RawWorker(proxy.address, handlers={"h": 1}, name="mute")
        mute.polite = False
        await mute.connect(credit=False)
        await eventually(lambda: proxy.cut == 1)
        await mute.break_stream()


async def test_a_worker_is_back_in_time_after_a_blip_of_three_seconds(
    database: str, tmp_path: Path, workers: Workers
) -> None:
    """With the default times; another worker waits for what the first one might lose."""
    runs: Counter[int] = Counter()
    async with contextlib.AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(TcpProxy()) for _ in range(2)]
        settings = {"heartbeat": "3s", "worker_lease": "15s", "reset_grace": "5s"}
        nodes = []
        for letter, way in zip("ab", ways, strict=True):
            folder, name = tmp_path / letter, f"node-{letter}"
            node = configured_node(database, folder, name=name, advertise=way.address, **settings)
            await node.start()
            stack.push_async_callback(node.stop)
            way.target = node.address
            nodes.append(node)
        await eventually(lambda: shared(nodes), timeout_s=60)
        cut_off = Worker(ways[0].address, name="cut-off", watchdog=0)
        release = asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        @cut_off.handler("h", max_concurrency=4)
        async def hold(payload: object, ctx: Context) -> None:
            loops.append(asyncio.get_running_loop())
            runs[ctx.job_id] += 1
            await release.wait()

        await workers.start(cut_off)
        await eventually(lambda: len(cut_off.nodes) == 2)
        ids = [await submit(node, "h", 2, shard=min(node.engine.ownership.epochs)) for node in nodes]
        await eventually(lambda: len(runs) == 4)
        async with RawWorker(nodes[0].address, handlers={"h": 4}, name="near") as near:
            for way in ways:
                await way.shut()
            await asyncio.sleep(3.0)
            began_s = time.monotonic()
            for way in ways:
                await way.open()
            await eventually(lambda: len(cut_off.nodes) == 2)
            print(f"back {time.monotonic() - began_s:.2f} s after the blip")
            await asyncio.sleep(3.0)
            assert not near.jobs
        loops[0].call_soon_threadsafe(release.set)
        await finished(nodes[0], [job_id for some in ids for job_id in some])
        assert set(runs.values()) == {1}
        await workers.stop_all()
