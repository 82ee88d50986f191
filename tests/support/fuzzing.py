"""Messages with any values in them, for every method of every service."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from shardwheel.v1 import (
    admin_service_pb2,
    job_service_pb2,
    peer_service_pb2,
    schedule_service_pb2,
    worker_service_pb2,
)

FILES: Final = (job_service_pb2, schedule_service_pb2, admin_service_pb2, worker_service_pb2, peer_service_pb2)

INT32: Final = st.integers(0, 6) | st.integers(-(2**31), 2**31 - 1)
# Among them times that are good, and the ids that the first jobs of a database get.
INT64: Final = (
    st.integers(0, 50).map(lambda number: (10_000 + number) << 12 | number % 64)
    | st.integers(946_684_800, 7_258_118_399)
    | st.integers(0, 1000)
    | st.integers(-(2**63), 2**63 - 1)
)
GOOD_TEXT: Final = ["", "default", "h", "email.send", "k", "* * * * *", "UTC", f"00-{'1' * 32}-{'2' * 16}-01"]
TEXT: Final = (
    st.sampled_from(GOOD_TEXT)
    | st.sampled_from(GOOD_TEXT)
    | st.from_regex(r"[a-z0-9-]{1,8}", fullmatch=True)
    | st.text(max_size=8)
    | st.sampled_from(["\x00", "a" * 300])
)
VALUES: Final[dict[int, st.SearchStrategy[Any]]] = {
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_ENUM: INT32,
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([0.0, 1.0, 2.0]) | st.floats(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=40),
}
# Most of the time: what leads on, into the code behind the checks.
USUAL: Final = {"handler": ["h", "g"], "namespace": ["default"], "worker": ["w"]}
# Fields that are seldom left out, for without them nothing is looked at.
NEEDED: Final = {"job", "jobs", "id", "ids", "seconds", "spec", "name", "hello", "cron", "expression", "incarnation"}


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service."""

    path: str
    request: Callable[[], Message]
    streams_requests: bool
    streams_responses: bool


def methods() -> list[Method]:
    """Every method of every service of ours."""
    return [
        Method(
            path=f"/{service.full_name}/{method.name}",
            request=_kind_of(method.input_type),
            streams_requests=method.client_streaming,
            streams_responses=method.server_streaming,
        )
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


@st.composite
def messages(draw: st.DrawFn, kind: Callable[[], Message], depth: int = 0) -> Message:
    """Draw a message with any values in a few of its fields, so that some pass."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if field.name in USUAL and not field.message_type and not field.is_repeated and draw(st.integers(0, 9)):
            setattr(message, field.name, draw(st.sampled_from(USUAL[field.name])))
            continue
        if draw(st.integers(0, 3)) and (field.name not in NEEDED or not draw(st.integers(0, 7))):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key, value in draw(st.dictionaries(TEXT, TEXT, max_size=2)).items():
                _put(getattr(message, field.name), key, value)
        elif field.message_type is not None:
            if depth > 6:
                continue
            parts = draw(st.lists(messages(_kind_of(field.message_type), depth + 1), min_size=1, max_size=2))
            for part in parts[: None if field.is_repeated else 1]:
                target = getattr(message, field.name)
                (target.add() if field.is_repeated else target).CopyFrom(part)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(VALUES[field.type], max_size=2)))
        else:
            setattr(message, field.name, draw(VALUES[field.type]))
    return message


@st.composite
def requests(draw: st.DrawFn, method: Method) -> list[bytes]:
    """Draw what is sent to a method: one message, or a few if it takes a stream; some of them damaged."""
    count = draw(st.integers(1, 4)) if method.streams_requests else 1
    return [draw(damaged(draw(messages(method.request)).SerializeToString())) for _ in range(count)]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Change a few bytes, or none."""
    if draw(st.integers(0, 2)):
        return data
    raw = bytearray(data)
    for position, value in draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        if raw:
            raw[position % len(raw)] = value
    return bytes(raw + draw(st.binary(max_size=10)))


def _kind_of(message_type: object) -> Callable[[], Message]:
    return GetMessageClass(cast("Descriptor", message_type))


def _put(target: Any, key: str, value: str) -> None:
    """Set an entry of a map, whose values need not be texts."""
    try:
        target[key] = value
    except TypeError:
        target[key] = len(value)
