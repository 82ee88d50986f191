"""In which order a session sends what is handed to it while it is writing."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shardwheel.v1.worker_service_pb2 import Hello, Progress, Report, Result, SessionRequest
from worker_sdk.connection import Connection
from worker_sdk.session import Session


class NoProgress:
    """The part of a listener that is asked while a session writes."""

    def hello(self) -> Hello:
        return Hello()

    def take_progress(self, session: Session) -> list[Progress]:
        return []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not called while a session writes")


def sent(session: Session, *, at: str, **meanwhile: Any) -> list[SessionRequest]:
    """Return what two turns of the writer send, if during the first one's `at` the rest is handed over."""
    requests: list[SessionRequest] = []
    for _ in range(2):
        for request in session._requests():
            requests.append(request)
            if request.WhichOneof("message") == at and len(requests) == 1:
                for method, arguments in meanwhile.items():
                    getattr(session, method)(*arguments)
    return requests


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """A session that is not open."""
    made = Session(Connection(addresses=("localhost:1",)), "localhost:1", NoProgress())
    yield made
    await made.close()


async def test_a_result_never_goes_ahead_of_the_progress_that_came_with_it(session: Session) -> None:
    session.send_results([], [Progress(data=b"row 2")])
    both = [Result()], [Progress(data=b"row 3")]
    requests = sent(session, at="heartbeat", send_results=both)
    assert [request.WhichOneof("message") for request in requests] == ["heartbeat", "heartbeat", "results"]
    assert [one.data for one in requests[1].heartbeat.progress] == [b"row 3"]


async def test_a_report_never_goes_ahead_of_the_results_before_it(session: Session) -> None:
    session.send_results([Result()])
    requests = sent(session, at="results", send_results=([Result()],), send_report=(Report(),))
    assert [request.WhichOneof("message") for request in requests] == ["results", "results", "report"]
