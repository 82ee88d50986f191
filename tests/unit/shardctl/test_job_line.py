"""Lines of a file of jobs."""

import json
from datetime import timedelta

import pytest

from server.domain.errors import InvalidInput
from shard_manager.shardctl.job_line import parse_job_line
from shardwheel.v1.job_pb2 import JobSpec

NOTHING = JobSpec()


def test_every_field_of_a_job_can_be_given() -> None:
    line = {
        "handler": "email.send",
        "payload": {"to": "ä@b.c", "n": [1, 2.5, None, True]},
        "name": "welcome",
        "priority": 1,
        "delay": "5m",
        "retry": {"max_attempts": 2, "initial_delay": 0.5, "multiplier": 3, "non_retryable_error_types": ["KeyError"]},
        "timeouts": {"attempt_timeout": "30s", "total_timeout": 3600},
        "dedupe_key": "d",
        "dedupe_ttl": "1d",
        "concurrency_key": "c",
        "concurrency_limit": 2,
        "labels": {"team": "mail"},
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    job = parse_job_line(json.dumps(line), NOTHING)
    assert job.payload == '{"to":"ä@b.c","n":[1,2.5,null,true]}'.encode()
    assert job.content_type == "application/json"
    assert (job.handler, job.name, job.priority, job.dedupe_key) == ("email.send", "welcome", 1, "d")
    assert (job.concurrency_key, job.concurrency_limit, dict(job.labels)) == ("c", 2, {"team": "mail"})
    assert job.delay.ToTimedelta() == timedelta(minutes=5)
    assert job.dedupe_ttl.ToTimedelta() == timedelta(days=1)
    assert (job.retry.max_attempts, job.retry.multiplier) == (2, 3.0)
    assert job.retry.initial_delay.ToTimedelta() == timedelta(milliseconds=500)
    assert list(job.retry.non_retryable_error_types) == ["KeyError"]
    assert job.timeouts.attempt_timeout.ToTimedelta() == timedelta(seconds=30)
    assert job.timeouts.total_timeout.ToTimedelta() == timedelta(hours=1)
    assert not job.timeouts.HasField("start_timeout")


def test_no_field_of_a_job_is_missing_from_the_lines() -> None:
    others = {"payload"}
    for field in JobSpec.DESCRIPTOR.fields:
        if field.name not in others:
            with pytest.raises(InvalidInput, match=r"has to be|is not an instant") as refused:
                parse_job_line(json.dumps({"handler": "h", field.name: False}), NOTHING)
            assert refused.value.field == field.name


def test_other_bytes_have_their_own_names_and_types() -> None:
    text = parse_job_line('{"handler": "h", "payload_text": "Grüße"}', NOTHING)
    assert (text.payload, text.content_type) == ("Grüße".encode(), "text/plain; charset=utf-8")
    raw = parse_job_line('{"handler": "h", "payload_base64": "/wA="}', NOTHING)
    assert (raw.payload, raw.content_type) == (b"\xff\x00", "application/octet-stream")
    named = parse_job_line('{"handler": "h", "payload_text": "<a/>", "content_type": "text/xml"}', NOTHING)
    assert named.content_type == "text/xml"


def test_a_line_wins_over_the_defaults() -> None:
    defaults = JobSpec(handler="h", priority=5, labels={"a": "1"})
    defaults.delay.FromTimedelta(timedelta(hours=1))
    job = parse_job_line('{"priority": 2, "labels": {"b": "2"}, "due_at": "2026-11-01T05:30:00Z"}', defaults)
    assert (job.handler, job.priority, dict(job.labels), job.WhichOneof("due")) == ("h", 2, {"b": "2"}, "due_at")
    assert defaults == parse_job_line("{}", defaults)


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        ("{", "line", "is no JSON"),
        ("[]", "line", "is not a JSON object"),
        ("[" * 100_000, "line", "nested too deep"),
        ('{"handler": "h", "priority": NaN}', "line", "no JSON number"),
        ("{}", "handler", "is missing"),
        ('{"handler": ""}', "handler", "is missing"),
        ('{"handler": 5}', "handler", "has to be a string"),
        ('{"handler": "h", "handler": "i"}', "handler", "given twice"),
        ('{"handler": "h", "prioritty": 1}', "prioritty", "is no field; known are handler"),
        ('{"handler": "h", "priority": "1"}', "priority", "whole number"),
        ('{"handler": "h", "priority": true}', "priority", "whole number"),
        ('{"handler": "h", "priority": 3000000000}', "priority", "out of range"),
        ('{"handler": "h", "delay": "soon"}', "delay", "write it as 90s"),
        ('{"handler": "h", "delay": -1}', "delay", "has to be a duration"),
        ('{"handler": "h", "due_at": "2026-11-01T05:30:00"}', "due_at", "with an offset"),
        ('{"handler": "h", "due_at": "2026-11-01T05:30:00Z", "delay": 1}', "delay", "beside due_at"),
        ('{"handler": "h", "labels": {"a": 1}}', "labels", "has to be a string"),
        ('{"handler": "h", "retry": {"max_delay": "x"}}', "retry.max_delay", "write it as"),
        ('{"handler": "h", "retry": {"attempts": 1}}', "retry.attempts", "is no field; known are max_attempts"),
        ('{"handler": "h", "timeouts": "1s"}', "timeouts", "an object with start_timeout"),
        ('{"handler": "h", "payload": 1e999}', "payload", "cannot be sent"),
        ('{"handler": "h", "payload": "\\ud800"}', "payload", "cannot be sent"),
        ('{"handler": "h", "payload_base64": "?"}', "payload_base64", "cannot be sent"),
        ('{"handler": "h", "payload": 1, "payload_text": "1"}', "payload_text", "stands beside payload"),
        ('{"handler": "h", "name": "\\ud800"}', "name", "surrogate"),
    ],
)
def test_bad_lines_are_refused_naming_the_field(line: str, field: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_job_line(line, NOTHING)
    assert refused.value.field == field
    assert reason in refused.value.reason.replace("Value out", "out")
    assert len(str(refused.value)) < 1000
