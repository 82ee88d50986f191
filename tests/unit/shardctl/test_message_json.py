"""Messages as JSON: every key is there, and values have one form."""

import json
from datetime import timedelta

from shard_manager.shardctl.job_view import job_json, listed_job_json
from shard_manager.shardctl.message_json import bytes_to_json, enum_name, message_to_json
from shardwheel.v1.job_pb2 import Attempt, Job
from shardwheel.v1.schedule_pb2 import CatchUpPolicy, CronTiming, OverlapPolicy, Schedule
from shardwheel.v1.schedule_service_pb2 import EnsureSchedulesResponse


def full_job() -> Job:
    job = Job(id=4097, namespace="default", handler="email.send", priority=3, state=Job.FAILED, attempt=2, claim=3)
    job.due_at.FromJsonString("2026-11-01T05:30:00Z")
    job.created_at.FromJsonString("2026-11-01T05:29:00.123456Z")
    job.payload, job.content_type = b'{"to": "a@b.c"}', "application/json"
    job.result = b"\xff\x00"
    job.retry.max_attempts, job.retry.multiplier = 4, 2.0
    job.retry.initial_delay.FromTimedelta(timedelta(milliseconds=1500))
    job.timeouts.attempt_timeout.FromTimedelta(timedelta(minutes=1))
    job.labels.update({"team": "mail", "a": "b"})
    job.error.type, job.error.message = "ValueError", "boom"
    job.waiting_because = Job.BACKING_OFF
    job.attempts.add(attempt=1, claim=1, worker="w-0", outcome=Attempt.TIMED_OUT)
    return job


def test_a_job_has_all_its_fields_under_their_names() -> None:
    data = job_json(full_job())
    assert list(data) == [field.name for field in Job.DESCRIPTOR.fields]
    assert data["id"] == 4097
    assert data["state"] == "failed"
    assert data["due_at"] == "2026-11-01T05:30:00Z"
    assert data["created_at"] == "2026-11-01T05:29:00.123456Z"
    assert data["finished_at"] is None
    assert data["payload"] == '{"to": "a@b.c"}'
    assert data["result"] == {"base64": "/wA="}
    assert data["retry"] == {
        "max_attempts": 4,
        "initial_delay": 1.5,
        "multiplier": 2.0,
        "max_delay": None,
        "non_retryable_error_types": [],
    }
    assert data["timeouts"] == {"start_timeout": None, "attempt_timeout": 60, "total_timeout": None}
    assert data["labels"] == {"a": "b", "team": "mail"}
    assert data["error"] == {"type": "ValueError", "message": "boom"}
    assert data["waiting_because"] == "backing_off"
    assert data["cancel_requested"] is False
    assert json.loads(json.dumps(data)) == data


def test_an_attempt_says_how_it_ended() -> None:
    attempt = message_to_json(full_job().attempts[0])
    assert (attempt["attempt"], attempt["worker"], attempt["outcome"]) == (1, "w-0", "timed_out")


def test_an_empty_message_has_the_same_keys() -> None:
    assert list(job_json(Job())) == list(job_json(full_job()))
    assert job_json(Job())["state"] is None
    assert list(message_to_json(Schedule())) == [field.name for field in Schedule.DESCRIPTOR.fields]


def test_a_listed_job_has_no_fields_that_lists_do_not_fill() -> None:
    left_out = {"payload", "result", "attempts", "waiting_because"}
    assert set(listed_job_json(full_job())) == set(job_json(full_job())) - left_out


def test_enum_values_lose_the_prefix_of_their_enum() -> None:
    def names(descriptor: object) -> list[str | None]:
        return [enum_name(value) for value in descriptor.values]  # type: ignore[attr-defined]

    assert names(Job.State.DESCRIPTOR) == [None, "pending", "running", "completed", "failed", "cancelled"]
    assert names(OverlapPolicy.DESCRIPTOR) == [None, "skip", "buffer_one", "buffer_all", "cancel_running", "allow"]
    assert names(CatchUpPolicy.DESCRIPTOR) == [None, "one", "all", "none"]
    assert names(CronTiming.GapPolicy.DESCRIPTOR) == [None, "run_after", "skip"]
    assert names(EnsureSchedulesResponse.Change.DESCRIPTOR) == [None, "created", "updated", "unchanged", "deleted"]


def test_bytes_are_text_or_marked_base64() -> None:
    assert bytes_to_json(b"") == ""
    assert bytes_to_json("Grüße\n\x00".encode()) == "Grüße\n\x00"
    assert bytes_to_json(b"\x80") == {"base64": "gA=="}
