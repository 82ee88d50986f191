"""`shardctl jobs submit --file` over a real socket."""

import json
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from shardwheel.v1.job_service_pb2 import SubmitJobsRequest, SubmitJobsResponse, SubmitResult
from tests.integration.shardctl.conftest import Shardctl
from tests.integration.shardctl.scripted_server import Answer, Refusal, ScriptedServer


def accept(request: Message) -> Answer:
    assert isinstance(request, SubmitJobsRequest)
    results = [SubmitResult(job_id=int(job.payload) + 1, created=True) for job in request.jobs]
    return SubmitJobsResponse(results=results)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.jsonl"
    file.write_text("".join(f'{{"handler": "h", "payload": {number}}}\n' for number in range(2500)))
    return file


def test_a_file_goes_in_batches_and_the_ids_come_back_in_order(
    server: ScriptedServer, shardctl: Shardctl, file: Path
) -> None:
    server.answer_with("SubmitJobs", accept)
    ran = shardctl("jobs", "submit", "--file", str(file), "--priority", "5", "--namespace", "tenant", "-o", "json")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.json == {
        "submitted": 2500,
        "created": 2500,
        "existing": 0,
        "differing": 0,
        "job_ids": list(range(1, 2501)),
    }
    requests = server.requests(SubmitJobsRequest)
    assert [len(request.jobs) for request in requests] == [1000, 1000, 500]
    assert {request.namespace for request in requests} == {"tenant"}
    assert {job.priority for request in requests for job in request.jobs} == {5}
    assert [int(job.payload) for request in requests for job in request.jobs] == list(range(2500))


def test_stdin_with_blank_lines_and_a_byte_order_mark(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer_with("SubmitJobs", accept)
    ran = shardctl("jobs", "submit", "h", "--file", "-", stdin=b'\xef\xbb\xbf{"payload": 1}\r\n\n  \n{"payload": 2}')
    assert (ran.code, ran.stdout) == (0, "2 jobs submitted\n")
    (request,) = server.requests(SubmitJobsRequest)
    assert [(job.handler, job.payload) for job in request.jobs] == [("h", b"1"), ("h", b"2")]


def test_existing_jobs_are_counted(server: ScriptedServer, shardctl: Shardctl) -> None:
    results = [SubmitResult(job_id=1, created=True), SubmitResult(job_id=2), SubmitResult(job_id=3, differs=True)]
    server.answer("SubmitJobs", SubmitJobsResponse(results=results))
    ran = shardctl("jobs", "submit", "--file", "-", stdin=b'{"handler": "h", "dedupe_key": "d"}\n' * 3)
    assert ran.stdout == "1 job submitted, 2 existed already (1 of them with other content)\n"


def test_large_jobs_make_smaller_batches(server: ScriptedServer, shardctl: Shardctl, tmp_path: Path) -> None:
    server.answer_with("SubmitJobs", lambda request: SubmitJobsResponse())
    line = json.dumps({"handler": "h", "payload_text": "x" * 200_000})
    (tmp_path / "large").write_text(f"{line}\n" * 30)
    assert shardctl("jobs", "submit", "--file", str(tmp_path / "large")).code == 0
    requests = server.requests(SubmitJobsRequest)
    assert sum(len(request.jobs) for request in requests) == 30
    assert max(request.ByteSize() for request in requests) <= 4 * 1024 * 1024


def test_bad_lines_are_listed_with_their_numbers_and_nothing_is_sent(
    server: ScriptedServer, shardctl: Shardctl, file: Path
) -> None:
    lines = file.read_text().splitlines()
    lines[1500] = '{"handler": "h", "priority": "high"}'
    lines[2000] = "{"
    file.write_text("\n".join(lines))
    ran = shardctl("jobs", "submit", "--file", str(file))
    assert (ran.code, ran.stdout, server.calls) == (2, "", [])
    first, second, last = ran.stderr.splitlines()
    assert first == f"{file}:1501: priority: has to be a whole number (got 'high')"
    assert second.startswith(f"{file}:2001: line: is no JSON")
    assert last == "error: 2 bad lines; nothing was stored"


def test_many_bad_lines_are_cut_short(shardctl: Shardctl) -> None:
    ran = shardctl("jobs", "submit", "--file", "-", stdin=b"{}\n" * 5000)
    assert ran.code == 2
    assert len(ran.stderr.splitlines()) == 22
    assert "… and 4980 more" in ran.stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "holds no jobs"), (b"\n\n", "holds no jobs"), (b'{"a": "\xff"}', "-:1: line: is not UTF-8")],
)
def test_what_holds_no_jobs_is_refused(shardctl: Shardctl, content: bytes, text: str) -> None:
    ran = shardctl("jobs", "submit", "--file", "-", stdin=content)
    assert ran.code == 2
    assert text in ran.stderr


def test_a_file_that_is_not_there_is_refused(shardctl: Shardctl, tmp_path: Path) -> None:
    ran = shardctl("jobs", "submit", "--file", str(tmp_path / "none"))
    assert (ran.code, ran.stderr) == (2, f"error: --file: cannot read {tmp_path / 'none'}: No such file or directory\n")


def test_what_the_server_refuses_is_named_by_line(server: ScriptedServer, shardctl: Shardctl, file: Path) -> None:
    refusal = Refusal(
        grpc.StatusCode.INVALID_ARGUMENT, "2 jobs refused", ("jobs[3].priority", "has to be 1 to 5"), ("jobs[7]", "bad")
    )
    server.answer("SubmitJobs", SubmitJobsResponse(results=[SubmitResult(job_id=1, created=True)]), refusal)
    ran = shardctl("jobs", "submit", "--file", str(file))
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr.splitlines() == [
        f"{file}:1004: priority: has to be 1 to 5",
        f"{file}:1008: job: bad",
        "The jobs up to line 1000 are stored.",
    ]


def test_a_failure_on_the_way_tells_what_is_stored_and_what_is_not_known(
    server: ScriptedServer, shardctl: Shardctl, file: Path
) -> None:
    away = Refusal(grpc.StatusCode.UNAVAILABLE, "no database", retry_in_s=2, reason="OUTCOME_UNKNOWN")
    server.answer("SubmitJobs", SubmitJobsResponse(results=[SubmitResult(job_id=1, created=True)]), away)
    ran = shardctl("jobs", "submit", "--file", str(file))
    assert (ran.code, ran.stdout) == (1, "")
    assert "error: no database (UNAVAILABLE)" in ran.stderr
    assert "Try again in 2s." in ran.stderr
    assert "The jobs up to line 1000 are stored." in ran.stderr
    assert "Whether the jobs of lines 1001 to 2000 are stored is not known." in ran.stderr


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
def test_a_failure_that_is_certain_says_so(
    server: ScriptedServer, shardctl: Shardctl, file: Path, code: grpc.StatusCode
) -> None:
    server.answer("SubmitJobs", Refusal(code, "x"))
    ran = shardctl("jobs", "submit", "--file", str(file))
    assert (ran.code, ran.stderr.splitlines()) == (1, [f"error: x ({code.name})", "Nothing was stored."])
    away = shardctl("jobs", "submit", "--file", str(file), "--address", "127.0.0.1:1")
    assert away.stderr.splitlines()[-1] == "Nothing was stored."
    assert "not known" not in away.stderr
