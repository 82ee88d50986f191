"""What SetHandlerDispatch refuses, with field, value and remedy."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration

from server.api.dispatch_request import DispatchRequest
from server.api.errors import InvalidRequest
from server.domain.dispatch import DispatchMode
from shardwheel.v1 import admin_service_pb2 as pb


def request(**fields: object) -> pb.SetHandlerDispatchRequest:
    build: Callable[..., pb.SetHandlerDispatchRequest] = pb.SetHandlerDispatchRequest
    return build(**{"handler": "mail", "mode": pb.DISPATCH_KAFKA} | fields)


def test_what_is_left_out_stays_as_it_is() -> None:
    found = DispatchRequest.of(request())
    assert (found.namespace, found.handler, found.mode) == ("default", "mail", DispatchMode.KAFKA)
    assert (found.queue_timeout, found.max_unfinished) == (None, None)


def test_what_is_given_is_taken() -> None:
    found = DispatchRequest.of(request(queue_timeout=Duration(seconds=90), max_unfinished=5, mode=pb.DISPATCH_STREAM))
    assert (found.mode, found.queue_timeout, found.max_unfinished) == (DispatchMode.STREAM, timedelta(seconds=90), 5)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"handler": ""}, "handler"),
        ({"handler": "a/b"}, "handler"),
        ({"handler": "a b"}, "handler"),
        ({"namespace": "N"}, "namespace"),
        ({"mode": 0}, "mode"),
        ({"mode": 9}, "mode"),
        ({"queue_timeout": Duration(nanos=1)}, "queue_timeout"),
        ({"queue_timeout": Duration(seconds=604_801)}, "queue_timeout"),
        ({"queue_timeout": Duration(seconds=-1)}, "queue_timeout"),
        ({"queue_timeout": Duration(seconds=2, nanos=-5)}, "queue_timeout"),
        ({"queue_timeout": Duration(seconds=2**40)}, "queue_timeout"),
        ({"max_unfinished": -1}, "max_unfinished"),
        ({"max_unfinished": 1_000_001}, "max_unfinished"),
    ],
)
def test_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DispatchRequest.of(request(**fields))
    assert {one.field for one in caught.value.violations} == {field}


def test_a_name_with_a_slash_may_stay_with_streams() -> None:
    assert DispatchRequest.of(request(handler="a/b", mode=pb.DISPATCH_STREAM)).handler == "a/b"
