"""Whatever arrives, the answer is one that the API knows; INTERNAL is not among them."""

from collections.abc import Callable
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from tests.integration.api.node import ApiNode

# A fresh database for each example would take longer than the examples.
FUZZ: Final = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

KNOWN: Final = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
}

REQUESTS: Final = {
    "JobService/SubmitJob": pb.SubmitJobRequest,
    "JobService/SubmitJobs": pb.SubmitJobsRequest,
    "JobService/GetJob": pb.GetJobRequest,
    "JobService/ListJobs": pb.ListJobsRequest,
    "JobService/CancelJob": pb.CancelJobRequest,
    "JobService/RetryJob": pb.RetryJobRequest,
    "JobService/WaitJob": pb.WaitJobRequest,
    "AdminService/ListHandlers": admin_pb.ListHandlersRequest,
    "AdminService/PauseHandler": admin_pb.PauseHandlerRequest,
    "AdminService/ResumeHandler": admin_pb.ResumeHandlerRequest,
    "AdminService/CreateNamespace": admin_pb.CreateNamespaceRequest,
    "AdminService/ListWorkers": admin_pb.ListWorkersRequest,
}

INT32: Final = st.integers(0, 6) | st.integers(-(2**31), 2**31 - 1)
# Among them times that are good, and the ids that the first jobs of a database get.
INT64: Final = (
    st.integers(0, 50).map(lambda number: (10_000 + number) << 12 | number % 64)
    | st.integers(946_684_800, 7_258_118_399)
    | st.integers(0, 1000)
    | st.integers(-(2**63), 2**63 - 1)
)
GOOD_TEXT: Final = ["", "default", "h", "email.send", "k", f"00-{'1' * 32}-{'2' * 16}-01"]
TEXT: Final = (
    st.sampled_from(GOOD_TEXT)
    | st.sampled_from(GOOD_TEXT)
    | st.from_regex(r"[a-z0-9-]{1,8}", fullmatch=True)
    | st.text(max_size=8)
    | st.sampled_from(["\x00", "a" * 300])
)

VALUES: Final[dict[int, st.SearchStrategy[Any]]] = {
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_ENUM: INT32,
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, 1.0, 2.0]) | st.floats(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=40),
}


def _kind_of(message_type: object) -> Callable[[], Message]:
    return GetMessageClass(cast("Descriptor", message_type))


@st.composite
def messages(draw: st.DrawFn, kind: Callable[[], Message]) -> Message:
    """Draw a message with any values in a few of its fields, so that some pass; the job of a submit is always there."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if field.name in ("handler", "namespace") and draw(st.integers(0, 9)):
            setattr(message, field.name, draw(st.sampled_from(["h", "g"])) if field.name == "handler" else "default")
            continue
        if field.name not in ("job", "jobs", "id", "seconds") and draw(st.integers(0, 3)):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key, value in draw(st.dictionaries(TEXT, TEXT, max_size=2)).items():
                getattr(message, field.name)[key] = value
        elif field.message_type is not None:
            parts = st.lists(messages(_kind_of(field.message_type)), min_size=1, max_size=2)
            for part in draw(parts)[: None if field.is_repeated else 1]:
                target = getattr(message, field.name)
                (target.add() if field.is_repeated else target).CopyFrom(part)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(VALUES[field.type], max_size=2)))
        else:
            setattr(message, field.name, draw(VALUES[field.type]))
    return message


async def status(node: ApiNode, method: str, data: bytes) -> grpc.StatusCode:
    """Make a call and return its status; a wait is cut short by its deadline, which it knows."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = node.channel.unary_unary(f"/shardwheel.v1.{method}")
    return await call(data, timeout=0.3 if "Wait" in method else 10).code()


@FUZZ
@given(data=st.data())
async def test_requests_with_any_values(node: ApiNode, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(sorted(REQUESTS)))
    request = data.draw(messages(REQUESTS[method]))
    code = await status(node, method, request.SerializeToString())
    assert code in KNOWN, (method, request)
    # What was let in can be read back.
    assert await status(node, "JobService/ListJobs", b"") is grpc.StatusCode.OK


@FUZZ
@given(data=st.data())
async def test_requests_of_any_bytes(node: ApiNode, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(sorted(REQUESTS)))
    raw = bytearray(data.draw(messages(REQUESTS[method])).SerializeToString())
    for position, value in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        if raw:
            raw[position % len(raw)] = value
    raw += data.draw(st.binary(max_size=10))
    assert await status(node, method, bytes(raw)) in KNOWN, (method, bytes(raw))
