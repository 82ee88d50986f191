"""`shardctl` as a process of its own: exit codes, pipes, encodings."""

import json
import os
import subprocess
import sys

import pytest

from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import ListJobsResponse
from tests.integration.shardctl.scripted_server import ScriptedServer


def shardctl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWHEEL_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "shard_manager.shardctl", *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        env={**clean, **environment},
    )


def test_a_preview_works_offline() -> None:
    ran = shardctl(
        *("schedules", "preview", "--cron", "30 2 * * *", "--time-zone", "America/New_York"),
        *("--after", "2026-03-07T17:00:00Z", "--count", "2", "-o", "json"),
        SHARDWHEEL_ADDRESS="127.0.0.1:1",
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == b'{"firings": ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]}\n'


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["schedules", "preview", "--cron", "0 0 31 2 *"], 2, b"error: cron: day-of-month"),
        (["jobs", "get", "x"], 2, b"ID"),
        (["jobs", "get", "1"], 1, b"error: cannot reach a server at 127.0.0.1:1"),
        ([], 2, b"Usage: shardctl"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, text: bytes) -> None:
    ran = shardctl(*arguments, SHARDWHEEL_ADDRESS="127.0.0.1:1")
    assert (ran.returncode, ran.stdout) == (code, b"")
    assert text in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_help_is_no_error() -> None:
    ran = shardctl("jobs", "submit", "--help")
    assert ran.returncode == 0
    assert b"--dedupe-key" in ran.stdout
    assert max(map(len, ran.stdout.decode().splitlines())) <= 80


def test_tables_in_a_pipe_have_80_columns_and_no_escapes(server: ScriptedServer) -> None:
    job = Job(id=4097, handler="h" * 100, name="Grüße " + "世" * 100, state=Job.FAILED)
    server.answer("ListJobs", ListJobsResponse(jobs=[job]))
    for environment in ({}, {"COLUMNS": "200"}, {"TERM": "xterm-256color"}):
        ran = shardctl("jobs", "list", SHARDWHEEL_ADDRESS=server.address, PYTHONIOENCODING="utf-8", **environment)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert max(map(len, ran.stdout.decode().splitlines())) <= 80
        assert b"\x1b" not in ran.stdout


def test_characters_that_the_output_cannot_show_do_not_end_the_command(server: ScriptedServer) -> None:
    server.answer("ListJobs", ListJobsResponse(jobs=[Job(id=4097, name="Grüße", state=Job.PENDING)]))
    ran = shardctl("jobs", "list", SHARDWHEEL_ADDRESS=server.address, PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"Gr??e" in ran.stdout
    ran = shardctl("jobs", "list", "-o", "json", SHARDWHEEL_ADDRESS=server.address, PYTHONIOENCODING="utf-8")
    assert json.loads(ran.stdout)["jobs"][0]["name"] == "Grüße"


def test_a_reader_that_goes_away_ends_the_command_quietly(server: ScriptedServer) -> None:
    jobs = [Job(id=number, name="x" * 60, state=Job.PENDING) for number in range(1, 5000)]
    server.answer("ListJobs", ListJobsResponse(jobs=jobs))
    for output in ("table", "json"):
        command = [sys.executable, "-m", "shard_manager.shardctl", "jobs", "list", "--limit", "5000", "-o", output]
        with subprocess.Popen(
            [*command, "--address", server.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.wait(timeout=60) != 0
            assert b"Traceback" not in process.stderr.read()
