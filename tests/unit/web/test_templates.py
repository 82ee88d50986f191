"""What the templates have to keep up with."""

from importlib.resources import files

from shardwheel.v1.job_pb2 import Job


def test_every_reason_to_wait_is_put_in_words() -> None:
    page = (files("server.web") / "templates" / "job.html").read_text()
    reasons = {name for name, number in Job.WaitingReason.items() if number}
    assert {name for name in reasons if f'"{name}"' not in page} == set()
