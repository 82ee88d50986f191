"""The embedded ZooKeeper: its life with its parent, and what is said where there is none."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from server.embedded import EmbeddedZookeeper, EmbeddedZookeeperError, ZookeeperMissing
from server.embedded import zookeeper_installation as installation
from server.embedded.zookeeper import four_letter_word
from tests.support.commands import alive
from tests.support.scratch import make_folder
from tests.support.waiting import wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    path = make_folder("shardwheel-test-zk-")
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


def test_it_starts_again_on_its_data_and_port_after_a_kill(folder: Path) -> None:
    server = EmbeddedZookeeper(folder / "zookeeper")
    with server:
        port, first = server.port, server.pid
        assert server.mode == "standalone"
        server.kill()
        assert not server.running
        assert server.mode == ""
        server.start()
        assert (server.port, server.pid != first) == (port, True)
        assert server.hosts == f"127.0.0.1:{port}"
    assert (folder / "zookeeper" / "data" / "version-2").is_dir()
    assert four_letter_word(port, "srvr") == ""


def test_one_that_was_stopped_in_mid_air_can_be_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.embedded.zookeeper._STOP_S", 0.5)
    with EmbeddedZookeeper(folder / "zookeeper") as server:
        process = psutil.Process(server.pid)
        process.suspend()
        server.stop()
        assert not alive(process)


def test_it_ends_with_its_parent_and_an_ephemeral_folder_goes_too(folder: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from server.embedded import EmbeddedZookeeper\n"
        "server = EmbeddedZookeeper(pathlib.Path(sys.argv[1]), ephemeral=True)\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder / "zookeeper")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        wait_until(lambda: not alive(server), timeout_s=10, what="the server's end")
    wait_until(lambda: not (folder / "zookeeper").exists(), timeout_s=10, what="the end of its folder")


def test_a_server_that_cannot_start_says_what_its_log_says(folder: Path) -> None:
    server = EmbeddedZookeeper(folder / "zookeeper", settings={"tickTime": "soon"})
    with pytest.raises(EmbeddedZookeeperError, match=r"ended at its start; the end of .*\n(.*\n)*.*Invalid config"):
        server.start()
    assert not server.running


def test_where_there_is_none_it_says_how_to_get_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_JARS", folder)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ZookeeperMissing) as refused:
        EmbeddedZookeeper(folder / "zookeeper")
    assert f"{folder} lacks zookeeper.jar" in str(refused.value)
    assert "run `apt-get install -y --no-install-recommends libzookeeper-java` as root" in str(refused.value)
    assert "SHARDWHEEL_TEST_ZOOKEEPER=HOST:PORT" in str(refused.value)
    assert list(folder.iterdir()) == []
    with pytest.raises(ZookeeperMissing):
        installation.ZookeeperInstallation.install()


def test_getting_it_fails_with_one_line_where_that_may_not_be(folder: Path) -> None:
    bare = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", installation.ADDRESS_VARIABLE)
    }
    command = [sys.executable, "-m", "server.embedded.get_zookeeper"]
    failed = subprocess.run(command, env=bare | {"PATH": str(folder)}, check=False, capture_output=True, text=True)
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert "there is no program java" in line
    assert "libzookeeper-java default-jre-headless" in line
    assert subprocess.run(command, check=False).returncode == 0
