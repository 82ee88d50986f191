"""`shardctl jobs` over a real socket."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from shardwheel.v1.job_pb2 import Attempt, Job
from shardwheel.v1.job_service_pb2 import (
    CancelJobRequest,
    GetJobRequest,
    ListJobsRequest,
    ListJobsResponse,
    RetryJobRequest,
    SubmitJobRequest,
    SubmitJobResponse,
    WaitJobRequest,
    WaitJobResponse,
)
from shardwheel.v1.schedule_pb2 import Schedule
from shardwheel.v1.schedule_service_pb2 import GetScheduleRequest
from tests.integration.shardctl.conftest import Shardctl
from tests.integration.shardctl.scripted_server import Refusal, ScriptedServer

ID = 9007199254740993


def a_job(state: Job.State.ValueType = Job.PENDING, **fields: object) -> Job:
    job = Job(id=ID, namespace="default", handler="email.send", priority=3, state=state, attempt=1, concurrency_limit=1)
    job.retry.max_attempts = 4
    job.due_at.FromDatetime(datetime(2026, 11, 1, 5, 30, tzinfo=UTC))
    job.MergeFrom(Job(**fields))  # type: ignore[arg-type]
    return job


def test_a_submit_sends_all_that_was_given(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("SubmitJob", SubmitJobResponse(job=a_job(), created=True))
    ran = shardctl(
        *("jobs", "submit", "email.send", '{"to": "a@b.c"}', "--in", "5m", "--priority", "2", "--name", "welcome"),
        *("--dedupe-key", "d", "--dedupe-ttl", "1h", "--concurrency-key", "c", "--concurrency-limit", "3"),
        *("--label", "team=mail", "--label", "empty=", "--max-attempts", "5", "--attempt-timeout", "30s"),
        *("--start-timeout", "1m", "--total-timeout", "1h", "--retry-delay", "2s", "--retry-max-delay", "1m"),
        *("--namespace", "tenant", "-o", "json"),
    )
    assert (ran.code, ran.stderr) == (0, "")
    assert (ran.json["created"], ran.json["differs"]) == (True, False)
    (request,) = server.requests(SubmitJobRequest)
    job = request.job
    assert (request.namespace, job.handler, job.payload, job.content_type) == (
        "tenant",
        "email.send",
        b'{"to": "a@b.c"}',
        "application/json",
    )
    assert (job.name, job.priority, job.dedupe_key, job.concurrency_key, job.concurrency_limit) == (
        "welcome",
        2,
        "d",
        "c",
        3,
    )
    assert dict(job.labels) == {"team": "mail", "empty": ""}
    assert job.delay.ToTimedelta() == timedelta(minutes=5)
    assert job.dedupe_ttl.ToTimedelta() == timedelta(hours=1)
    assert job.retry.max_attempts == 5
    assert job.retry.initial_delay.ToTimedelta() == timedelta(seconds=2)
    assert job.retry.max_delay.ToTimedelta() == timedelta(minutes=1)
    assert job.timeouts.attempt_timeout.ToTimedelta() == timedelta(seconds=30)
    assert job.timeouts.start_timeout.ToTimedelta() == timedelta(minutes=1)
    assert job.timeouts.total_timeout.ToTimedelta() == timedelta(hours=1)


def test_what_is_not_given_is_left_to_the_server(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("SubmitJob", SubmitJobResponse(job=a_job(), created=True))
    ran = shardctl("jobs", "submit", "email.send")
    assert (ran.code, ran.stdout) == (0, f"job {ID} submitted (pending)\n")
    (request,) = server.requests(SubmitJobRequest)
    assert [field.name for field, _ in request.job.ListFields()] == ["handler"]


def test_payloads_come_from_stdin_and_files(server: ScriptedServer, shardctl: Shardctl, tmp_path: Path) -> None:
    server.answer("SubmitJob", SubmitJobResponse(job=a_job(), created=True))
    (tmp_path / "payload").write_bytes(b"\x00\xff")
    at = "2026-11-01T06:30:00+01:00"
    assert shardctl("jobs", "submit", "h", "-", "--at", at, stdin="Grüße".encode()).code == 0
    assert shardctl("jobs", "submit", "h", "--payload-file", str(tmp_path / "payload")).code == 0
    first, second = (request.job for request in server.requests(SubmitJobRequest))
    assert (first.payload, first.content_type) == ("Grüße".encode(), "text/plain; charset=utf-8")
    assert first.due_at.ToDatetime(tzinfo=UTC) == datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    assert (second.payload, second.content_type) == (b"\x00\xff", "application/octet-stream")


def test_a_key_that_is_taken_is_told(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("SubmitJob", SubmitJobResponse(job=a_job(), created=False, differs=True))
    ran = shardctl("jobs", "submit", "h", "--dedupe-key", "d")
    assert (ran.code, ran.stdout) == (0, f"job {ID} exists already (pending)\n")
    assert ran.stderr == "note: the dedupe key belongs to a job with other content; that job is shown\n"


def test_a_submit_that_may_have_happened_says_so(server: ScriptedServer, shardctl: Shardctl) -> None:
    unknown = Refusal(
        grpc.StatusCode.UNAVAILABLE, "connection lost", reason="OUTCOME_UNKNOWN", retry_in_s=1, repeat_is_safe=False
    )
    server.answer("SubmitJob", unknown)
    ran = shardctl("jobs", "submit", "h")
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr.splitlines() == [
        "error: connection lost (UNAVAILABLE)",
        "The job may be stored all the same; with a --dedupe-key the submit is safe to repeat.",
    ]
    server.answer("SubmitJob", Refusal(grpc.StatusCode.UNAVAILABLE, "x", reason="DATABASE_UNAVAILABLE", retry_in_s=1))
    assert shardctl("jobs", "submit", "h").stderr.splitlines() == ["error: x (UNAVAILABLE)", "Try again in 1s."]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["jobs", "submit"], "error: handler: name the HANDLER"),
        (["jobs", "submit", "h", "--at", "2026-11-01T05:30:00Z", "--in", "5m"], "error: due: give either --at or --in"),
        (["jobs", "submit", "h", "x", "--payload-file", "y"], "error: payload: give either"),
        (["jobs", "submit", "h", "--label", "x"], "--label: 'x' is not KEY=VALUE"),
        (["jobs", "submit", "h", "--label", "x=1", "--label", "x=2"], "'x' is given twice"),
        (["jobs", "submit", "h", "--in", "soon"], "'soon' is not a duration"),
        (["jobs", "submit", "h", "--priority", "0"], "'0' is not a whole number from 1"),
        (["jobs", "submit", "h", "--max-attempts", "9999999999"], "is not a whole number from 1"),
        (["jobs", "submit", "h", "--file", "f", "--wait"], "error: --file"),
        (["jobs", "submit", "\udcff"], "cannot be sent; write arguments in UTF-8"),
        (["jobs", "get", "abc"], "ID"),
        (["jobs", "get", "99999999999999999999"], "ID"),
        (["jobs", "get", "0"], "ID"),
        (["jobs", "get"], "ID"),
        (["jobs", "list", "--state", "done"], "--state"),
        (["jobs", "list", "--since", "yesterday"], "--since"),
        (["jobs", "list", "--limit", "0"], "--limit"),
        (["jobs", "nope"], "nope"),
        (["nope"], "nope"),
    ],
)
def test_bad_usage_exits_2_and_calls_nothing(
    server: ScriptedServer, shardctl: Shardctl, arguments: list[str], text: str
) -> None:
    ran = shardctl(*arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert text in ran.stderr
    assert server.calls == []


def test_a_job_is_shown_with_everything_within_80_columns(server: ScriptedServer, shardctl: Shardctl) -> None:
    job = a_job(
        Job.FAILED,
        name="n" * 200,
        payload=b'{"to": "' + b"x" * 500 + b'"}',
        content_type="application/json",
        result=b"\xff\x00",
        labels={f"label-{number}": "v" * 40 for number in range(8)},
        worker="worker-" + "w" * 90,
        waiting_because=Job.NO_WORKER,
    )
    job.error.type, job.error.message = "ValueError", "line one\nline \x1b[31mtwo " + "m" * 300
    attempt = job.attempts.add(attempt=1, claim=1, worker="w" * 100, outcome=Attempt.WORKER_LOST)
    attempt.started_at.FromDatetime(datetime(2026, 11, 1, 5, 30, 1, tzinfo=UTC))
    attempt.error.type, attempt.error.message = "worker_lost", "e" * 200
    server.answer("GetJob", job)
    ran = shardctl("jobs", "get", str(ID))
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.widest <= 80
    assert "\x1b" not in ran.stdout
    for text in (str(ID), "waits because  no worker", "Payload (application/json):", "2 bytes that are no text"):
        assert text in ran.stdout
    assert "ValueError: line one\n" + " " * 15 + "line \\x1b[31mtwo" in ran.stdout
    assert "  1  worker lost  2026-11-01T05:30:01Z  www" in ran.stdout
    assert server.requests(GetJobRequest) == [GetJobRequest(namespace="default", id=ID)]


def test_a_list_fits_80_columns_and_keeps_the_ids(server: ScriptedServer, shardctl: Shardctl) -> None:
    failed = a_job(Job.FAILED, attempt=4, handler="h" * 150)
    failed.error.type, failed.error.message = "ValueError", "m" * 200
    server.answer("ListJobs", ListJobsResponse(jobs=[failed, a_job(name="welcome")]))
    ran = shardctl("jobs", "list")
    assert ran.code == 0
    assert ran.widest == 80
    head, first, second = ran.stdout.splitlines()
    assert head.split()[:3] == ["ID", "HANDLER", "STATE"]
    assert first.startswith(f"{ID}  hhh")
    assert "failed   4/4  2026-11-01T05:30:00Z  Value" in first
    assert second.endswith("welcome")


def test_a_list_sends_its_filters_and_shows_no_payload(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetSchedule", Schedule(id=77, name="nightly"))
    server.answer("ListJobs", ListJobsResponse(jobs=[a_job(Job.FAILED)]))
    before = datetime.now(UTC)
    ran = shardctl(
        *("jobs", "list", "--state", "failed", "--state", "cancelled", "--handler", "email.send", "--label", "a=b"),
        *("--schedule", "nightly", "--since", "1h", "--until", "2027-01-01T00:00:00Z", "--limit", "10", "-o", "json"),
    )
    after = datetime.now(UTC)
    assert (ran.code, list(ran.json)) == (0, ["jobs", "more"])
    (job,) = ran.json["jobs"]
    assert "payload" not in job
    assert server.requests(GetScheduleRequest)[0].name == "nightly"
    (request,) = server.requests(ListJobsRequest)
    assert (list(request.states), request.handler, dict(request.labels), request.schedule_id) == (
        [Job.FAILED, Job.CANCELLED],
        "email.send",
        {"a": "b"},
        77,
    )
    assert before - timedelta(hours=1) <= request.created_from.ToDatetime(tzinfo=UTC) <= after - timedelta(hours=1)
    assert request.created_before.ToDatetime(tzinfo=UTC) == datetime(2027, 1, 1, tzinfo=UTC)


def test_a_list_follows_the_pages_also_empty_ones(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer(
        "ListJobs",
        ListJobsResponse(jobs=[a_job()], next_page_token="a"),
        ListJobsResponse(next_page_token="b"),
        ListJobsResponse(jobs=[a_job(), a_job()], next_page_token="c"),
    )
    ran = shardctl("jobs", "list", "--limit", "2", "--schedule", "77", "-o", "json")
    assert (ran.code, ran.json["more"], len(ran.json["jobs"])) == (0, True, 2)
    assert ran.stderr == "note: these are the newest 2; --limit shows more\n"
    requests = server.requests(ListJobsRequest)
    assert [(request.page_token, request.page_size) for request in requests] == [("", 3), ("a", 2), ("b", 2)]
    assert {request.schedule_id for request in requests} == {77}


def test_an_empty_list_says_so(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("ListJobs", ListJobsResponse())
    assert shardctl("jobs", "list").stdout == "no jobs\n"
    assert shardctl("jobs", "list", "-o", "json").json == {"jobs": [], "more": False}


def test_cancel_and_retry(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("CancelJob", a_job(Job.CANCELLED), a_job(Job.RUNNING))
    server.answer("RetryJob", a_job(Job.PENDING))
    assert shardctl("jobs", "cancel", str(ID), "--reason", "typo").stdout == f"job {ID} is cancelled\n"
    assert "its worker has been told" in shardctl("jobs", "cancel", str(ID)).stdout
    assert shardctl("jobs", "retry", str(ID), "-o", "json").json["state"] == "pending"
    assert server.requests(CancelJobRequest)[0] == CancelJobRequest(namespace="default", id=ID, reason="typo")
    assert server.requests(RetryJobRequest) == [RetryJobRequest(namespace="default", id=ID)]


def test_many_are_cancelled_by_filters(server: ScriptedServer, shardctl: Shardctl) -> None:
    """Live jobs that match; one of them has ended in between."""
    server.answer("ListJobs", ListJobsResponse(jobs=[a_job(Job.PENDING), a_job(Job.PENDING), a_job(Job.RUNNING)]))
    ended = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "it is completed already", reason="JOB_FINAL")
    server.answer("CancelJob", a_job(Job.CANCELLED), ended, a_job(Job.RUNNING))
    ran = shardctl("jobs", "cancel", "--handler", "mail", "--label", "team=a", "-o", "json")
    assert ran.json == {"cancelled": 1, "told_to_stop": 1}
    [listed] = server.requests(ListJobsRequest)
    assert (listed.handler, dict(listed.labels), list(listed.states)) == (
        "mail",
        {"team": "a"},
        [Job.PENDING, Job.RUNNING],
    )


def test_an_empty_filter_selects_nothing_unless_all_are_meant(server: ScriptedServer, shardctl: Shardctl) -> None:
    nothing: list[tuple[str, ...]] = [(), ("--handler", ""), ("--reason", "typo")]
    for arguments in nothing:
        ran = shardctl("jobs", "cancel", *arguments)
        assert (ran.code, "--all means every job of the namespace" in ran.stderr) == (2, True)
    too_much: list[tuple[str, ...]] = [(str(ID), "--all"), (str(ID), "--handler", "a"), ("--handler", "a", "--all")]
    for arguments in too_much:
        assert shardctl("jobs", "cancel", *arguments).code == 2
    assert server.requests(ListJobsRequest) == []
    assert server.requests(CancelJobRequest) == []
    server.answer("ListJobs", ListJobsResponse(jobs=[a_job(Job.PENDING)]))
    server.answer("CancelJob", a_job(Job.CANCELLED))
    assert shardctl("jobs", "cancel", "--all").stdout == "1 job cancelled, 0 running jobs told to stop\n"


def test_a_wait_goes_on_until_the_job_is_final(server: ScriptedServer, shardctl: Shardctl) -> None:
    done = WaitJobResponse(job=a_job(Job.COMPLETED, result=b'{"ok": true}'), done=True)
    server.answer("WaitJob", WaitJobResponse(job=a_job(Job.RUNNING)), done)
    ran = shardctl("jobs", "wait", str(ID), "-o", "json")
    assert (ran.code, ran.json["state"], ran.json["result"]) == (0, "completed", '{"ok": true}')
    first, _ = server.requests(WaitJobRequest)
    assert first.max_wait.ToTimedelta() == timedelta(seconds=30)
    assert server.time_left[0] > 30


@pytest.mark.parametrize("state", [Job.FAILED, Job.CANCELLED])
def test_a_wait_for_a_job_that_does_not_complete_shows_it_and_exits_1(
    server: ScriptedServer, shardctl: Shardctl, state: Job.State.ValueType
) -> None:
    job = a_job(state)
    job.error.type = "ValueError"
    server.answer("WaitJob", WaitJobResponse(job=job, done=True))
    ran = shardctl("jobs", "wait", str(ID), "-o", "json")
    assert (ran.code, ran.json["id"]) == (1, ID)
    assert ran.stderr.startswith(f"error: job {ID} is {Job.State.Name(state).lower()}: ValueError\n")
    assert f"`shardctl jobs retry {ID}`" in ran.stderr


def test_a_wait_ends_at_its_timeout(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("WaitJob", WaitJobResponse(job=a_job(Job.PENDING)))
    ran = shardctl("jobs", "wait", str(ID), "--timeout", "100ms")
    assert (ran.code, ran.stdout) == (1, "")
    assert f"error: job {ID} is still pending after 100ms" in ran.stderr
    assert all(request.max_wait.ToTimedelta() > timedelta() for request in server.requests(WaitJobRequest))


def test_a_wait_outlives_a_server_that_is_away_for_a_moment(server: ScriptedServer, shardctl: Shardctl) -> None:
    away = Refusal(grpc.StatusCode.UNAVAILABLE, "no database", retry_in_s=1)
    server.answer("WaitJob", away, away, WaitJobResponse(job=a_job(Job.COMPLETED), done=True))
    assert shardctl("jobs", "wait", str(ID)).code == 0
    assert len(server.calls) == 3


def test_a_submit_can_wait(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("SubmitJob", SubmitJobResponse(job=a_job(), created=True))
    server.answer("WaitJob", WaitJobResponse(job=a_job(Job.COMPLETED, result=b"5"), done=True))
    ran = shardctl("jobs", "submit", "h", "--wait", "-o", "json")
    assert ran.code == 0
    assert ran.json["created"] is True
    assert ran.json["job"]["result"] == "5"
    assert server.requests(WaitJobRequest)[0].id == ID
