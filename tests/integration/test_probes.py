"""The HTTP port of a node: what probes and metrics say of real work, and of what goes wrong."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.app import LoopEnded, Node
from server.config import load_config
from server.domain.errors import InvalidInput
from tests.support.nodes import QUICK, running_node, submit
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, NonRetryable, Worker

HTTP = {"http_listen": "127.0.0.1:0"}
SHARDS = 64


def _get(node: Node, path: str, accept: str = "") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{node.http.address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode(), answer.headers["content-type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers["content-type"]


async def get(node: Node, path: str, accept: str = "") -> tuple[int, str, str]:
    """Status, body and content type."""
    return await asyncio.to_thread(_get, node, path, accept)


async def checks(node: Node, path: str) -> tuple[int, dict[str, str]]:
    """Status, and what is wrong by name."""
    code, body, kind = await get(node, path)
    assert kind == "application/json"
    return code, {one["name"]: one["detail"] for one in json.loads(body)["checks"] if not one["ok"]}


async def samples(node: Node) -> dict[str, float]:
    """All samples by name and labels, as in `name{a=b}`."""
    code, body, kind = await get(node, "/metrics")
    assert code == 200
    assert kind.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(body):
        for one in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(one.labels.items()))
            found[f"{one.name}{{{labels}}}" if labels else one.name] = one.value
    return found


async def test_metrics_tell_of_ownership_jobs_and_workers(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, **HTTP) as node:
        worker = Worker(node.address, name="w")

        @worker.handler("good", max_concurrency=4)
        async def good(payload: None) -> None:
            return

        @worker.handler("bad")
        async def bad(payload: None) -> None:
            raise NonRetryable("not this time")

        await asyncio.to_thread(worker.start)
        try:
            async with AsyncClient(node.address) as client:
                for _ in range(5):
                    await client.submit("good")
                await client.submit("bad")
                await client.submit("nobody.runs.this")

            async def all_ended() -> bool:
                return (await samples(node))["shardwheel_results_total{ack=accepted}"] == 6

            await eventually(all_ended, what="the results of all jobs")
            now = await samples(node)
        finally:
            await asyncio.to_thread(worker.stop)
    assert now["shardwheel_shards_owned"] == SHARDS
    assert sum(name.startswith("shardwheel_shard_epoch{") for name in now) == SHARDS
    assert now["shardwheel_ownership_changes_total{cause=plan,change=acquired}"] == SHARDS
    assert now["shardwheel_fence_ins_total{outcome=accepted}"] == SHARDS
    assert now["shardwheel_coordinator_sessions_total{event=opened}"] == 1
    assert now["shardwheel_claimed_jobs_total"] == 6
    assert now["shardwheel_start_lateness_seconds_count"] == 6
    assert 0 < now["shardwheel_start_lateness_seconds_sum"] < 60
    assert now["shardwheel_run_time_seconds_count"] == 6
    assert now["shardwheel_ended_attempts_total{state=completed}"] == 5
    assert now["shardwheel_ended_attempts_total{state=failed}"] == 1
    assert now["shardwheel_worker_streams"] == 1
    assert now["shardwheel_grpc_calls_total{code=OK,method=JobService/SubmitJob}"] == 7
    # The load of the cluster, told by the leader.
    assert now["shardwheel_jobs_due{handler=nobody.runs.this,namespace=default}"] == 1
    assert now["shardwheel_jobs_oldest_due_seconds{handler=nobody.runs.this,namespace=default}"] > 0
    assert now["shardwheel_workers"] == 1
    hot = [now[f"shardwheel_database_connections{{pool=hot,use={use}}}"] for use in ("busy", "idle")]
    assert sum(hot) == int(QUICK["hot_connections"])


async def test_the_page_comes_in_the_format_that_is_asked_for(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, **HTTP) as node:
        _, body, kind = await get(node, "/metrics", "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")
        assert (await get(node, "/nothing"))[0] == 404


async def test_a_node_whose_loop_has_ended_is_not_alive_and_says_so(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, **HTTP) as node:
        assert await checks(node, "/healthz") == (200, {})
        [loop] = [task for task in node.health.loops if task.get_name() == "shard-manager"]
        loop.cancel()
        await asyncio.wait([loop])
        code, wrong = await checks(node, "/healthz")
        assert (code, wrong) == (503, {"loops": "ended: shard-manager"})


async def test_a_loop_that_fails_breaks_the_node(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, **HTTP) as node:

        async def fails() -> None:
            raise RuntimeError("a fault")

        node.watch_loop(asyncio.create_task(fails(), name="faulty"))
        with pytest.raises(LoopEnded, match="faulty"):
            await asyncio.wait_for(node.until_broken(), 5)


async def test_a_node_that_stops_is_not_ready_and_answers_to_the_end(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, **HTTP) as node:
        assert (await checks(node, "/readyz"))[0] == 200
        await submit(node, "h")
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        code, wrong = await checks(node, "/readyz")
        assert (code, wrong["node"]) == (503, "gives its shards away and stops")
        await stopping
        with pytest.raises(OSError, match="refused"):
            await get(node, "/readyz")


async def test_a_schema_that_asks_for_newer_nodes_is_told(database: str, tmp_path: Path) -> None:
    async with running_node(database, tmp_path, **HTTP) as node:
        insert = "INSERT INTO schema_migrations (version, name, compatible_from) VALUES (999, 'later', 999)"
        await node.database.run(insert.encode())

        async def told() -> bool:
            code, wrong = await checks(node, "/readyz")
            return code == 503 and wrong == {"schema": "version 999 needs nodes of schema version 999; upgrade"}

        await eventually(told, what="/readyz with the schema")


async def test_a_port_in_use_is_refused_by_name_and_leaves_nothing_behind(database: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {**QUICK, "database": database, "listen": "127.0.0.1:0", "data_dir": tmp_path, "node": "node-a"}
        with pytest.raises(InvalidInput, match="http_listen"):
            await Node(load_config({**settings, "http_listen": address}, {})).start()
    async with running_node(database, tmp_path) as node:
        assert node.http.address == ""
