"""How a node starts when something is wrong: what can never work ends it with one line, what is merely away it waits
for, visibly, and until it is ready it serves nothing."""

import asyncio
import itertools
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psycopg
import pytest
from grpc_health.v1 import health_pb2
from psycopg import conninfo

from server.store.migrate import VERSION, migrate
from tests.support.commands import RunningCommand, running, shardwheel
from tests.support.postgres import PostgresServer
from tests.support.scratch import make_folder, remove_folder
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZookeeperServer, free_ports
from worker_sdk import Client

TTL_S = 2.0
_paths = itertools.count(1)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = make_folder("shardwheel-start-")
    yield path
    remove_folder(path)


@pytest.fixture
def place(zookeeper: str) -> str:
    """Servers, and a path that nobody else uses."""
    return f"{zookeeper}/start-{os.getpid()}-{next(_paths)}"


class Node:
    """`shardwheel serve` with ports that are known before it says them."""

    def __init__(self, folder: Path, database: str, *, name: str = "node-a", data: str = "", **settings: str) -> None:
        grpc_port, http_port = free_ports(2)
        self.address, self.http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
        flags = {
            "database": database, "node": name, "listen": self.address, "http-listen": self.http,
            "data-dir": data or name, "session-ttl": f"{TTL_S:g}s", "hot-connections": "2", "api-connections": "2",
            **{key.replace("_", "-"): value for key, value in settings.items()},
        }  # fmt: skip
        self.arguments = ["serve", *(part for flag, value in flags.items() for part in (f"--{flag}", value))]
        self.folder = folder

    def refused(self) -> str:
        """Start it, expect it to end with code 1 and one line, and return that."""
        ended = shardwheel(*self.arguments, folder=self.folder)
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert (ended.returncode, len(errors)) == (1, 1), ended.stderr
        assert "Traceback" not in ended.stderr
        return errors[0]

    @contextmanager
    def running(self) -> Iterator[RunningCommand]:
        with running(*self.arguments, folder=self.folder) as command:
            self._command = command
            yield command

    def get(self, path: str) -> tuple[int, str]:
        """What a probe is answered; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def not_ready(self) -> str:
        """What /readyz says is wrong; empty if it is green or does not answer."""
        code, body = self.get("/readyz")
        if code != 503:
            return ""
        return "; ".join(check["detail"] for check in json.loads(body)["checks"] if not check["ok"])

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def serves(self) -> bool:
        """Whether gRPC's health says so."""
        with grpc.insecure_channel(self.address) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            try:
                answer = check(health_pb2.HealthCheckRequest(), timeout=1)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def waits(self, reason: str) -> None:
        """It is alive, says why it is not ready, and serves nothing."""
        wait_until(lambda: reason in self.not_ready(), timeout_s=60, what=f"/readyz with {reason!r}")
        assert self.get("/healthz")[0] == 200
        assert not self.serves()

    def becomes_ready(self) -> None:
        def ready() -> bool:
            assert self._command.process.poll() is None, f"has ended: {self._command.err}"
            return self.is_ready() and self.serves()

        wait_until(ready, timeout_s=90, what="readiness")


def owned(database: str) -> int:
    with psycopg.connect(database) as connection:
        [[count]] = connection.execute("SELECT count(*) FROM shards WHERE owner IS NOT NULL").fetchall()
        return int(count)


def changed(uri: str, **parts: str) -> str:
    """The URI with other parts."""
    there = {**conninfo.conninfo_to_dict(uri), **parts}
    return f"postgresql://{there['user']}:{there['password']}@{there['host']}:{there['port']}/{there['dbname']}"


# What is merely away.


def test_a_database_that_is_away_is_waited_for(folder: Path, postgres: PostgresServer, database: str) -> None:
    node = Node(folder, database)
    postgres.stop()
    try:
        with node.running() as command:
            node.waits("waits for the database: cannot connect")
            assert command.err.count('"event":"the start waits"') == 1
            postgres.start()
            node.becomes_ready()
            assert '"event":"the start goes on"' in command.err
            wait_until(lambda: owned(database) == 64, what="all shards")
            with Client(node.address) as client:
                assert client.submit("h").created

            # Once it serves, it says when the database is away, and that it is back.
            postgres.stop()
            wait_until(lambda: "no answer for" in node.not_ready(), timeout_s=60, what="/readyz without a database")
            assert node.get("/healthz")[0] == 200
            postgres.start()
            node.becomes_ready()
            assert database.split(":")[2].split("@")[0] not in command.err + command.out
    finally:
        if not postgres.running:
            postgres.start()


def test_a_zookeeper_that_is_away_is_waited_for_and_serving_goes_on_without_it(folder: Path, database: str) -> None:
    with ZookeeperServer() as server:
        server.stop()
        node = Node(folder, database, coordinator="zookeeper", zookeeper=f"{server.hosts}/away")
        with node.running() as command:
            node.waits(f"waits for the coordinator: coordinator unavailable during look: no answer within 3 s from "
                       f"{server.hosts}: [Errno 111] Connection refused")  # fmt: skip
            assert owned(database) == 0
            server.start()
            node.becomes_ready()
            wait_until(lambda: owned(database) == 64, what="all shards")

            # Away later on: ready all the same, and it is said.
            server.stop()
            wait_until(lambda: "64 shards that are held are served on" in node.get("/readyz")[1], what="a word of it")
            assert node.is_ready()
            with Client(node.address) as client:
                assert client.submit("h").created
            assert "SHARDWHEEL_ZOOKEEPER" not in command.err


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [("127.0.0.1:9", "Connection refused"), ("no.such.host.invalid:2181", "cannot be resolved")],
    ids=["wrong port", "wrong name"],
)
def test_a_wrong_address_of_zookeeper_is_told_while_it_waits(
    folder: Path, database: str, hosts: str, reason: str
) -> None:
    node = Node(folder, database, coordinator="zookeeper", zookeeper=hosts)
    with node.running() as command:
        wait_until(lambda: reason in node.not_ready(), timeout_s=60, what=f"/readyz with {reason!r}")
        assert not node.serves()
        # The wrong address is not what the cluster is bound to.
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT coordinator FROM cluster").fetchall() == [(None,)]
        assert command.stop(signal.SIGTERM, timeout_s=10) < 5
        assert command.process.returncode == 0
    assert owned(database) == 0


# What can never work.


def test_a_database_that_lets_nobody_in_ends_the_start(folder: Path, database: str) -> None:
    for uri, reason in (
        (changed(database, password="s3cret-wrong"), "password authentication failed"),
        (changed(database, dbname="nothing-here"), 'database "nothing-here" does not exist'),
        (f"{database}?sslmode=never", "invalid sslmode value"),
    ):
        said = Node(folder, uri).refused()
        assert "--database (SHARDWHEEL_DATABASE)" in said
        assert reason in said
        assert "s3cret" not in said


def test_a_schema_that_does_not_fit_ends_the_start(folder: Path, database: str) -> None:
    with psycopg.connect(database) as connection:
        insert = "INSERT INTO schema_migrations (version, name, compatible_from) VALUES (%s, 'later', %s)"
        connection.execute(insert, (VERSION + 1, VERSION + 1))
    assert "upgrade this node" in Node(folder, database).refused()


def test_a_zookeeper_that_refuses_the_node_ends_the_start(folder: Path, database: str, place: str) -> None:
    good = Node(folder, database, coordinator="zookeeper", zookeeper=place, zookeeper_auth="shardwheel:right")
    with good.running():
        good.becomes_ready()
        for auth in ({"zookeeper_auth": "shardwheel:s3cret-wrong"}, {}):
            wrong = Node(folder, database, name="node-b", coordinator="zookeeper", zookeeper=place, **auth)
            said = wrong.refused()
            assert "--zookeeper (SHARDWHEEL_ZOOKEEPER)" in said
            assert "credentials do not give it access" in said
            assert "s3cret" not in said


async def test_what_belongs_to_another_cluster_ends_the_start(
    folder: Path, database: str, empty_database: str, place: str
) -> None:
    await migrate(empty_database)
    first = Node(folder, empty_database, name="node-a", coordinator="zookeeper", zookeeper=place)
    with first.running():
        await asyncio.to_thread(first.becomes_ready)
        second = Node(folder, database, name="node-b", coordinator="zookeeper", zookeeper=place)
        assert "belongs to cluster" in await asyncio.to_thread(second.refused)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT coordinator FROM cluster").fetchall() == [(None,)]


async def test_another_number_of_shards_than_planned_ends_the_start(
    folder: Path, database: str, empty_database: str, place: str
) -> None:
    await migrate(empty_database, shards=32, partitions=4)
    with psycopg.connect(database) as one, psycopg.connect(empty_database) as other:
        [[cluster_id]] = one.execute("SELECT cluster_id FROM cluster").fetchall()
        other.execute("UPDATE cluster SET cluster_id = %s", (cluster_id,))
    first = Node(folder, database, name="node-a", coordinator="zookeeper", zookeeper=place)
    with first.running():
        await asyncio.to_thread(first.becomes_ready)
        second = Node(folder, empty_database, name="node-b", coordinator="zookeeper", zookeeper=place)
        assert "set to 32 shards but the cluster has 64" in await asyncio.to_thread(second.refused)
    assert owned(empty_database) == 0


def test_nodes_with_another_coordinator_are_refused(folder: Path, database: str, place: str) -> None:
    on_zookeeper = {"coordinator": "zookeeper", "zookeeper": place}
    with ExitStack() as stack:
        first = Node(folder, database, name="node-a", **on_zookeeper)
        command = stack.enter_context(first.running())
        first.becomes_ready()
        wait_until(lambda: owned(database) == 64, what="all shards")
        for settings in ({}, {**on_zookeeper, "zookeeper": f"{place}/elsewhere"}):
            said = Node(folder, database, name="node-b", **settings).refused()
            assert "--coordinator (SHARDWHEEL_COORDINATOR): this cluster's coordinator is zookeeper:/start-" in said
            assert "shardwheel change-coordinator" in said
        assert first.is_ready()
        # No shard has changed hands meanwhile.
        assert '"event":"shard lost"' not in command.err


@pytest.mark.parametrize("coordinator", ["postgres", "zookeeper"])
def test_the_name_of_a_live_node_is_refused_and_that_of_a_dead_one_is_waited_for(
    folder: Path, database: str, place: str, coordinator: str
) -> None:
    settings = {"coordinator": coordinator, "zookeeper": place}
    first = Node(folder, database, data="here", **settings)
    # Another host: it has another data directory, and cannot know whether the first one lives.
    second = Node(folder, database, data="there", **settings)
    with first.running() as command:
        first.becomes_ready()
        wait_until(lambda: owned(database) == 64, what="all shards")
        said = second.refused()
        assert "--node (SHARDWHEEL_NODE): node name 'node-a' is taken by incarnation" in said
        assert '"event":"shard lost"' not in command.err
        assert first.is_ready()
        command.kill()
        with second.running():
            second.becomes_ready()
