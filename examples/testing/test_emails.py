from emails import send_email

from worker_sdk import JobState, RetryPolicy
from worker_sdk.testing import LocalServer


def test_an_email_is_sent(server: LocalServer) -> None:
    job = send_email.submit({"to": "ada@example.org"})
    assert server.client().wait(job.job_id, timeout=30).result_json() == "sent to ada@example.org"


def test_a_wrong_address_fails(server: LocalServer) -> None:
    job = send_email.submit({"to": "nobody"}, retry=RetryPolicy(max_attempts=1))
    done = server.client().wait(job.job_id, timeout=30)
    assert done.state is JobState.FAILED
    assert done.error is not None
    assert done.error.type == "ValueError"
