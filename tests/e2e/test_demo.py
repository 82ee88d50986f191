"""`shardwheel demo` as a process: its account with each kind of kill, and what is left of it, which is nothing."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.commands import RunningCommand, alive, running, shardwheel
from tests.support.scratch import make_folder, remove_folder
from tests.support.waiting import wait_until

KEYS = [
    "coordinator", "submitted", "completed", "failed", "lost", "duplicates", "early", "jobs_per_s", "start_ms_p50",
    "start_ms_p99", "killed", "recovered_ms", "moved_shards",
]  # fmt: skip
JOBS = 2000


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the demo makes its temporary folder; everybody may pass."""
    path = make_folder("shardwheel-demo-test-")
    yield path
    remove_folder(path)


ALONE = ("--nodes", "1", "--workers", "2", "--coordinator", "postgres")


def run_demo(folder: Path, *flags: str, coordinator: str = "postgres") -> tuple[dict[str, Any], str]:
    """Run a demo, check what holds for each, and return its object and all that it printed."""
    scratch = folder / "scratch"
    scratch.mkdir(mode=0o755)
    arguments = ("demo", "--jobs", str(JOBS), "--json", *flags)
    finished = shardwheel(*arguments, folder=folder, variables={"TMPDIR": str(scratch)})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0].startswith(f"coordinator {coordinator}: ")
    account = json.loads(lines[-1])
    assert isinstance(account, dict)
    assert list(account) == KEYS
    expected = {"coordinator": coordinator, "submitted": JOBS, "completed": JOBS, "failed": 0, "lost": 0, "early": 0}
    assert {name: account[name] for name in expected} == expected
    assert account["jobs_per_s"] > 0
    assert 0 < account["start_ms_p50"] <= account["start_ms_p99"]
    assert list(scratch.iterdir()) == []
    return account, finished.stdout + finished.stderr


def test_without_a_kill_every_job_runs_once(folder: Path) -> None:
    account, _ = run_demo(folder, *ALONE, "--kill", "none")
    assert (account["killed"], account["recovered_ms"], account["duplicates"]) == ("none", None, 0)


def test_the_kill_of_a_worker_repeats_only_what_it_was_running(folder: Path) -> None:
    account, text = run_demo(folder, *ALONE, "--kill", "worker")
    assert account["killed"] == "worker"
    assert account["recovered_ms"] > 0
    assert 0 <= account["duplicates"] <= 200
    assert "kill -9 of worker-1" in text
    assert "NOT explained" not in text


def test_the_kill_of_the_only_node_repeats_nothing(folder: Path) -> None:
    account, text = run_demo(folder, *ALONE, "--kill", "node")
    assert (account["killed"], account["duplicates"], account["moved_shards"]) == ("node", 0, 0)
    assert account["recovered_ms"] > 0
    assert "kill -9 of node-1" in text
    assert "64 shards are served again in " in text


@pytest.mark.parametrize("coordinator", ["zookeeper", "postgres"])
def test_three_nodes_lose_one_and_the_others_take_its_shards_over(folder: Path, coordinator: str) -> None:
    # ZooKeeper is the default where it is.
    flags = () if coordinator == "zookeeper" else ("--coordinator", coordinator)
    account, text = run_demo(folder, *flags, coordinator=coordinator)
    assert (account["killed"], account["duplicates"]) == ("node", 0)
    assert account["moved_shards"] in (21, 22)
    assert 0 < account["recovered_ms"] < 10_000
    assert f"it served {account['moved_shards']} shards" in text
    assert f"{account['moved_shards']} shards moved in " in text
    assert "shards: node-2 32, node-3 32" in text
    [carried_on] = [line.split()[2] for line in text.splitlines() if "carried on" in line]
    assert int(carried_on) > 0


def test_zookeeper_is_refused_with_a_remedy_where_there_is_none(folder: Path) -> None:
    # Neither Java nor a server is to be found.
    nowhere = {"PATH": str(folder), "JAVA_HOME": "", "SHARDWHEEL_TEST_ZOOKEEPER": ""}
    finished = shardwheel("demo", "--coordinator", "zookeeper", folder=folder, variables=nowhere)
    assert finished.returncode == 1
    assert "--coordinator: no ZooKeeper here (there is no program java)" in finished.stderr
    assert "libzookeeper-java" in finished.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--jobs", "10"], "--jobs: has to be from 100 to 1000000"),
        (["--nodes", "0"], "--nodes: has to be from 1 to 8"),
        (["--workers", "99"], "--workers: has to be from 1 to 16"),
        (["--kill", "postgres"], "--kill"),
        (["--coordinator", "etcd"], "--coordinator"),
    ],
)
def test_refuses(folder: Path, flags: list[str], said: str) -> None:
    finished = shardwheel("demo", *flags, folder=folder)
    assert finished.returncode == 2
    assert said in finished.stderr


def processes(command: RunningCommand) -> list[psutil.Process]:
    """Return everything that the demo has started, the server's processes included."""
    command.wait_for("burst: ")
    family = command.family()[1:]
    names = {argument for process in family for argument in process.cmdline()}
    assert {"serve", "worker-1", "worker-2"} <= names
    assert any("pgdata" in name for name in names)
    assert any("zookeeper" in name for name in names)
    return family


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_whatever_ends_the_demo_nothing_is_left(folder: Path, number: signal.Signals, exit_code: int) -> None:
    scratch = folder / "scratch"
    scratch.mkdir(mode=0o755)
    arguments = ("demo", "--jobs", "100000", "--nodes", "2", "--workers", "2", "--coordinator", "zookeeper")
    with running(*arguments, folder=folder, variables={"TMPDIR": str(scratch)}) as command:
        started = processes(command)
        assert command.stop(number) < 10
        assert command.process.returncode == exit_code
        wait_until(lambda: not any(map(alive, started)), timeout_s=20, what="the end of all processes")
        wait_until(lambda: not list(scratch.iterdir()), timeout_s=20, what="the end of the temporary folder")
        assert "Traceback" not in command.err
