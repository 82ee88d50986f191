"""Messages of the API as JSON: one rule for all, so that every key is stable and always there.

Keys are the field names of the .proto files. Instants are RFC 3339 in UTC, durations numbers of seconds, enums their
lower-case names without the enum's prefix (null if unspecified), unset messages null. Bytes are text if they are
UTF-8, else `{"base64": "…"}`.
"""

import base64
from collections.abc import Collection, Iterable
from datetime import UTC
from typing import cast

from google.protobuf.descriptor import EnumValueDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from shard_manager.shardctl.output import Json
from shard_manager.shardctl.times import format_instant


def message_to_json(message: Message, *, without: Collection[str] = ()) -> dict[str, Json]:
    """All fields of the message but those named in `without`, in the order of the .proto file."""
    # The C implementation's descriptors have the methods of these, but no common base class.
    fields = cast("Iterable[FieldDescriptor]", message.DESCRIPTOR.fields)
    return {field.name: _field(message, field) for field in fields if field.name not in without}


def bytes_to_json(data: bytes) -> Json:
    """The text, or the marked base64 form of what is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def seconds_of(duration: Duration) -> int | float:
    """The duration in seconds, as a whole number where it is one."""
    return duration.seconds if duration.nanos == 0 else duration.seconds + duration.nanos / 1e9


def enum_name(value: EnumValueDescriptor) -> str | None:
    """The name shown for an enum value: OVERLAP_SKIP is "skip", PENDING "pending"; None if it is unspecified."""
    if value.number == 0:
        return None
    # STATE_UNSPECIFIED tells the prefix the other values may carry: up to its last word but one, or one word less.
    words = value.type.values_by_number[0].name.split("_")[:-1]
    for length in range(len(words), 0, -1):
        prefix = "_".join(words[:length]) + "_"
        if value.name.startswith(prefix):
            return value.name.removeprefix(prefix).lower()
    return value.name.lower()


def _field(message: Message, field: FieldDescriptor) -> Json:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields_by_name["value"]
            return {str(key): _value(each, of_value) for key, each in sorted(value.items())}
        return [_value(each, field) for each in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: object, field: FieldDescriptor) -> Json:
    match value:
        case Timestamp():
            return format_instant(value.ToDatetime(tzinfo=UTC))
        case Duration():
            return seconds_of(value)
        case Message():
            return message_to_json(value)
        case bytes():
            return bytes_to_json(value)
        case int() if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else enum_name(known)
        case bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"{field.full_name} holds a {type(value).__name__}")
