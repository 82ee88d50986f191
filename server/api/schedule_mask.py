"""Field masks over a schedule's definition: the fields that an update names, and no others, take their new values."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from server.api.validation import Problems
from shardwheel.v1.schedule_pb2 import ScheduleSpec

MAX_PATHS: Final = 100
_EVERYTHING: Final = "*"


def check_mask(problems: Problems, field: str, paths: Sequence[str]) -> None:
    """Check the paths of a mask: each names a field of ScheduleSpec, or one of a message in it."""
    if len(paths) > MAX_PATHS:
        problems.add(field, f"{len(paths)} paths", f"takes at most {MAX_PATHS}")
        return
    for index, path in enumerate(paths):
        if path != _EVERYTHING and not _exists(ScheduleSpec.DESCRIPTOR, path.split(".")):
            reason = 'names no field of a ScheduleSpec; "cron", "job.payload" and "overlap" would'
            problems.add(f"{field}.paths[{index}]", ascii(path)[1:-1], reason)


def merged(current: ScheduleSpec, new: ScheduleSpec, paths: Sequence[str]) -> ScheduleSpec:
    """Return `current` with the fields of `paths` as they are in `new`: set, or not set. No paths mean all fields.

    A field of a message that `new` does not have becomes empty, and so does one of a timing of another kind.
    """
    if not paths or _EVERYTHING in paths:
        return new
    result = ScheduleSpec()
    result.CopyFrom(current)
    for path in paths:
        _copy(new, result, path.split("."))
    return result


def _exists(descriptor: Descriptor, names: Sequence[str]) -> bool:
    *parents, last = names
    for name in parents:
        field = descriptor.fields_by_name.get(name)
        if field is None or field.is_repeated or field.message_type is None:
            return False
        descriptor = field.message_type
    return last in descriptor.fields_by_name


def _copy(source: Message, target: Message, names: Sequence[str]) -> None:
    *parents, last = names
    for name in parents:
        source, target = getattr(source, name), getattr(target, name)
    field = target.DESCRIPTOR.fields_by_name[last]
    target.ClearField(last)
    if field.is_repeated:
        getattr(target, last).MergeFrom(getattr(source, last))
    elif field.message_type is None:
        setattr(target, last, getattr(source, last))
    elif source.HasField(last):
        getattr(target, last).CopyFrom(getattr(source, last))
