"""`worker_sdk.testing.LocalServer`: a whole server for the tests of users."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.commands import alive, environment
from tests.support.waiting import wait_until
from worker_sdk import NewJob
from worker_sdk.testing import LocalServer, ServerNotStarted

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time
from worker_sdk.testing import LocalServer
server = LocalServer()
server.start()
print(server.address, flush=True)
time.sleep(600)
"""


def test_the_example_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "-c", os.devnull, "."],
        cwd=REPOSITORY / "examples" / "testing",
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "postgres").write_text("no folder")
    with pytest.raises(ServerNotStarted, match="postgres"):
        LocalServer(data_dir=tmp_path).start()


@pytest.mark.soak
def test_data_are_kept_where_a_folder_is_given(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for turn in range(2):
        with LocalServer(data_dir=tmp_path / "kept") as server:
            jobs = server.client().submit_many([NewJob(handler="later", delay=3600)])
            with psycopg.connect(server.database) as connection:
                rows = connection.execute("SELECT count(*) FROM jobs").fetchall()
            assert rows == [(turn + 1,)]
            assert jobs[0].created
            with pytest.raises(RuntimeError, match="runs already"):
                server.start()


def test_a_server_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"127.0.0.1:")
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) > 1
            process.send_signal(signal.SIGKILL)
            wait_until(lambda: not any(map(alive, family)), timeout_s=60, what="the end of the server's processes")
        finally:
            process.kill()
