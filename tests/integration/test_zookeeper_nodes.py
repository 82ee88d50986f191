"""Nodes of one cluster on a real ZooKeeper: they share the shards, one is killed, the other goes on; refused starts."""

import asyncio
import itertools
import os
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from server.embedded.zookeeper import TICK_MS
from tests.support.commands import RunningCommand, running, shardwheel
from tests.support.nodes import running_node
from tests.support.waiting import eventually
from tests.support.zookeeper import free_ports
from worker_sdk import AsyncClient, NewJob, Worker

TTL_S = 2.0
SHARDS = 64
_paths = itertools.count(1)


@pytest.fixture
def place(zookeeper: str) -> str:
    """Servers, and a path that nobody else uses."""
    return f"{zookeeper}/nodes-{os.getpid()}/{next(_paths)}"


def owners(database: str) -> dict[str, int]:
    """How many shards each node has fenced in for itself."""
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT owner, count(*) FROM shards WHERE owner IS NOT NULL GROUP BY 1")
        return dict(rows.fetchall())


def serve(stack: ExitStack, database: str, place: str, folder: Path, name: str, port: int) -> RunningCommand:
    flags = {
        "database": database, "coordinator": "zookeeper", "zookeeper": place, "node": name,
        "listen": f"127.0.0.1:{port}", "session-ttl": f"{TTL_S:g}s", "data-dir": str(folder / name),
        "hot-connections": "4", "api-connections": "4",
    }  # fmt: skip
    arguments = [part for flag, value in flags.items() for part in (f"--{flag}", value)]
    return stack.enter_context(running("serve", *arguments, folder=folder))


async def test_when_a_node_is_killed_another_takes_its_shards_and_no_job_is_lost(
    database: str, place: str, tmp_path: Path
) -> None:
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        nodes = [serve(stack, database, place, tmp_path, f"node-{number}", port) for number, port in enumerate(ports)]
        for node in nodes:
            await asyncio.to_thread(node.wait_for, "coordinator zookeeper")
        ran: list[int] = []
        worker = Worker(addresses[1], name="w")

        @worker.handler("h", max_concurrency=8)
        async def handler(number: int) -> None:
            ran.append(number)

        await asyncio.to_thread(worker.start)
        try:
            await eventually(
                lambda: len(owners(database)) == 2 and sum(owners(database).values()) == SHARDS,
                timeout_s=20,
                what="both nodes having shards",
            )
            await eventually(lambda: len(worker.nodes) == 2, what="the worker's sessions to both nodes")
            async with AsyncClient(addresses[1]) as client:
                await client.submit_many([NewJob(handler="h", payload=number) for number in range(200)])
                await asyncio.to_thread(nodes[0].kill)
                killed_s = time.monotonic()
                await client.submit_many([NewJob(handler="h", payload=number) for number in range(200, 400)])
                await eventually(lambda: owners(database) == {"node-1": SHARDS}, what="the survivor's take-over")
                took_s = time.monotonic() - killed_s
                await eventually(lambda: set(ran) == set(range(400)), timeout_s=20, what="the end of all jobs")
        finally:
            await asyncio.to_thread(worker.stop)
    print(f"take-over of the killed node's shards: {took_s:.2f} s with sessions of {TTL_S} s")
    assert took_s < TTL_S + TICK_MS / 1000 + 1.5


async def test_nodes_hand_their_shards_over_when_they_stop(database: str, place: str, tmp_path: Path) -> None:
    settings = {"coordinator": "zookeeper", "zookeeper": place}
    async with running_node(database, tmp_path / "a", name="node-a", **settings) as first:
        assert len(first.engine.ownership.epochs) == SHARDS
        epochs = dict(first.engine.ownership.epochs)
    async with running_node(database, tmp_path / "b", name="node-b", **settings) as second:
        assert all(second.engine.ownership.epochs[shard] > epoch for shard, epoch in epochs.items())


async def change_coordinator(database: str, folder: Path, **flags: str) -> str:
    """Do what an operator does to change it; return what the command printed."""
    arguments = [part for flag, value in flags.items() for part in (f"--{flag}", value)]
    done = await asyncio.to_thread(shardwheel, "change-coordinator", "--database", database, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def generations(database: str) -> list[int]:
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute("SELECT DISTINCT generation FROM shards").fetchall()]


async def test_the_coordinator_is_changed_by_a_command_and_each_draws_a_higher_generation(
    database: str, place: str, tmp_path: Path
) -> None:
    zookeeper = {"coordinator": "zookeeper", "zookeeper": place}
    seen = []
    for number, settings in enumerate([{}, zookeeper, {}, zookeeper]):
        if number:
            said = await change_coordinator(database, tmp_path, **settings)
            assert f"the coordinator is {settings.get('coordinator', 'postgres')}" in said
            assert "already" in await change_coordinator(database, tmp_path, **settings)
        async with running_node(database, tmp_path / "a", name="node-a", **settings) as node:
            assert len(node.engine.ownership.epochs) == SHARDS
            [generation] = generations(database)
            seen.append(generation)
    assert seen == sorted(set(seen))


async def test_a_node_whose_coordinator_is_replaced_ends_and_says_why(
    database: str, place: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        node = serve(stack, database, place, tmp_path, "node-0", free_ports(1)[0])
        await asyncio.to_thread(node.wait_for, "coordinator zookeeper")
        await change_coordinator(database, tmp_path)
        assert await asyncio.to_thread(node.process.wait, 20) == 1
        assert "--coordinator (SHARDWHEEL_COORDINATOR): this cluster's coordinator is postgres" in node.err
    assert owners(database) == {}


def start(database: str, folder: Path, zookeeper: str, **more: str) -> tuple[int, str]:
    """Start a node that is expected not to come up; return its exit code and what it said."""
    flags = {"database": database, "coordinator": "zookeeper", "listen": "127.0.0.1:0", "zookeeper": zookeeper, **more}
    arguments = [part for flag, value in flags.items() for part in (f"--{flag}", value)]
    ended = shardwheel("serve", *arguments, folder=folder)
    return ended.returncode, ended.stderr


async def test_the_tree_of_another_cluster_is_refused(
    database: str, place: str, tmp_path: Path, empty_database: str
) -> None:
    from server.store.migrate import migrate

    await migrate(empty_database)
    async with running_node(empty_database, tmp_path / "a", coordinator="zookeeper", zookeeper=place):
        code, text = await asyncio.to_thread(start, database, tmp_path, place)
    assert code == 1
    assert "--zookeeper (SHARDWHEEL_ZOOKEEPER)" in text
    assert "belongs to cluster" in text


async def test_what_is_wrong_about_zookeeper_is_said_in_one_line(database: str, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    cases = [
        ("zk", {}, 2, "must be HOST:PORT"),
        (
            nobody,
            {"zookeeper-auth": "s3cret"},
            2,
            "--zookeeper-auth (SHARDWHEEL_ZOOKEEPER_AUTH): must be USER:PASSWORD",
        ),
        ("", {}, 2, "--zookeeper (SHARDWHEEL_ZOOKEEPER): is required"),
    ]
    ends = await asyncio.gather(
        *(
            asyncio.to_thread(start, database, tmp_path, place, **{"data-dir": str(number), **more})
            for number, (place, more, _, _) in enumerate(cases)
        )
    )
    for (_, _, code, said), (ended, text) in zip(cases, ends, strict=True):
        assert (ended, said in text, "s3cret" in text) == (code, True, False), text
        assert [line for line in text.splitlines() if line.startswith("error: ")] == [text.splitlines()[-1]]
