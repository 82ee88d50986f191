"""Traces from the submit to the handler, over retries, through a real node and a real exporter."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.domain.errors import InvalidInput
from server.observe.tracing import open_tracing
from tests.integration.tracing.collector import Collector, collecting
from tests.support.commands import REPOSITORY, environment
from tests.support.nodes import finished, history, running_node, submit
from tests.support.raw_worker import RawWorker
from tests.support.waiting import eventually

PROGRAM = Path(__file__).with_name("application.py")
EXPORT = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


async def run_application(node: str, collector: Collector) -> int:
    """Run the program to its end; return its job."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, node, collector.address, env=environment(**EXPORT), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0
    return int(out)


async def test_one_trace_leads_from_the_submit_to_all_attempts(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in EXPORT.items():
        monkeypatch.setenv(name, value)
    async with collecting() as collector:
        async with running_node(database, tmp_path, otlp_endpoint=f"http://{collector.address}") as node:
            job_id = await run_application(node.address, collector)
            [kept] = await history(node, job_id)
        # The node has sent the rest when it has stopped.
        await eventually(lambda: len(collector.named("dispatch report")) == 1, what="the last span")
    [order] = collector.named("order")
    [submitted] = collector.named("submit email.send")
    [stored] = collector.named("store email.send")
    first, second = collector.named("dispatch email.send")
    runs = collector.named("run email.send")
    assert {span.trace for span in collector.spans} == {order.trace}
    assert (submitted.parent, submitted.service) == (order.span, "shop")
    assert (stored.parent, stored.service) == (submitted.span, "shardwheel")
    assert kept.traceparent.startswith(f"00-{submitted.trace}-{submitted.span}-")
    assert (first.parent, second.parent) == (submitted.span, submitted.span)
    assert [span.parent for span in runs] == [first.span, second.span]
    assert [span.parent for span in collector.named("connect")] == [span.span for span in runs]
    assert [span.attributes["shardwheel.attempt"] for span in (first, second)] == [1, 2]
    assert [(span.failed, span.attributes["shardwheel.outcome"]) for span in runs] == [
        (True, "failed"),
        (False, "returned"),
    ]
    assert runs[0].attributes["error.type"] == "ConnectionError"
    assert {span.attributes["messaging.message.id"] for span in (stored, first, second, *runs)} == {str(job_id)}
    assert all(span.began_ns <= span.ended_ns for span in collector.spans)
    [threaded] = collector.named("run report")
    assert threaded.attributes["seen"] is True
    assert b"planted" not in collector.raw


async def test_jobs_are_run_and_a_node_stops_while_the_collector_is_away(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, otlp_endpoint="http://127.0.0.1:9") as node:
        async with RawWorker(node.address, handlers={"h": 1}) as worker:
            [job_id] = await submit(node, "h", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
            await eventually(lambda: bool(worker.jobs), what="the job")
            worker.complete(worker.jobs)
            await finished(node, [job_id], timeout=30)
        assert node.tracing is not None
        began = time.monotonic()
        await node.tracing.close()
        assert time.monotonic() - began < 10


def test_an_endpoint_without_the_packages_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidInput, match=r"otlp_endpoint.*pip install 'shardwheel\[otel\]'"):
        open_tracing("http://127.0.0.1:4317", node="n", version="1", handler_name=str)


def test_who_does_not_trace_does_not_load_what_traces() -> None:
    code = "import sys, worker_sdk, server.app; assert not [name for name in sys.modules if 'opentelemetry' in name]"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, env=environment(), check=True, timeout=60)


async def test_a_trace_that_is_not_sampled_makes_no_spans(database: str, tmp_path: Path) -> None:
    async with collecting() as collector:
        async with running_node(database, tmp_path, otlp_endpoint=f"http://{collector.address}") as node:
            async with RawWorker(node.address, handlers={"h": 2}) as worker:
                for flags in ("02", "01"):
                    await submit(node, "h", traceparent=f"00-{'a' * 32}-{flags * 8}-{flags}")
                jobs = await worker.next_jobs(2, timeout=30)
            contexts = sorted(job.traceparent for job in jobs)
        await eventually(lambda: len(collector.spans) == 1, what="the span of the job that is sampled")
    [span] = collector.spans
    assert (span.name, span.parent) == ("dispatch h", "01" * 8)
    assert f"00-{'a' * 32}-{'02' * 8}-02" in contexts
    assert f"00-{'a' * 32}-{span.span}-01" in [context[:-2] + "01" for context in contexts]
