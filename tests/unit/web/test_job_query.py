"""The filters of the list of jobs, from the address and back."""

from datetime import UTC, datetime
from urllib.parse import parse_qsl

from server.api.convert import instant
from server.web.pages.job_query import parse_query, request_of
from shardwheel.v1.job_pb2 import Job

ADDRESS = (
    "handler=email.send&state=failed&state=pending&labels=team%3Da+tier%3Db&schedule=s&from=2026-03-01T12%3A00"
    "&before=2026-03-02T12%3A00%2B02%3A00"
)


def test_filters_become_a_request() -> None:
    query = parse_query(parse_qsl(ADDRESS))
    assert query.errors == {}
    assert query.filtered
    request = request_of(query, "ns", 7)
    assert (request.namespace, request.handler, request.schedule_id) == ("ns", "email.send", 7)
    assert list(request.states) == [Job.PENDING, Job.FAILED]
    assert dict(request.labels) == {"team": "a", "tier": "b"}
    assert instant(request.created_from) == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert instant(request.created_before) == datetime(2026, 3, 2, 10, tzinfo=UTC)


def test_the_address_of_the_next_page_asks_for_the_same() -> None:
    query = parse_query(parse_qsl(ADDRESS))
    again = parse_query(parse_qsl(query.address(page="token")))
    assert again.page == "token"
    assert request_of(again, "", 0).page_token == "token"
    assert parse_query(parse_qsl(query.address())) == query


def test_what_is_not_understood_is_an_error_of_its_field() -> None:
    query = parse_query(parse_qsl("state=lost&labels=a&from=soon&before=2026-13-01"))
    assert set(query.errors) == {"state", "labels", "from", "before"}
    assert not parse_query([]).filtered
