"""One job as one line of JSON."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import NoReturn

from google.protobuf.message import Message

from server.domain.errors import InvalidInput
from shard_manager.shardctl.payload import BINARY_TYPE, JSON_TYPE, TEXT_TYPE
from shard_manager.shardctl.times import parse_duration, parse_instant
from shardwheel.v1.job_pb2 import JobSpec

_PAYLOAD_TYPES = {"payload": JSON_TYPE, "payload_text": TEXT_TYPE, "payload_base64": BINARY_TYPE}


def parse_job_line(line: str, defaults: JobSpec) -> JobSpec:
    """Reads a JSON object with the fields of a job over a copy of `defaults`.

    Raises InvalidInput, naming the field, for anything but known fields with values of the right type. Whether the
    values are within the limits is the server's to judge.
    """
    try:
        fields = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidInput("line", line, "is nested too deep") from None
    except json.JSONDecodeError as error:
        raise InvalidInput("line", line, f"is no JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(fields, dict):
        raise InvalidInput("line", line, 'is not a JSON object such as {"handler": "email.send"}')
    job = JobSpec()
    job.CopyFrom(defaults)
    if "due_at" in fields and "delay" in fields:
        raise InvalidInput("delay", fields["delay"], "stands beside due_at; give one of them")
    _set_payload(job, fields)
    for name, value in fields.items():
        if name not in _PAYLOAD_TYPES:
            _set(job, name, value, _FIELDS, name)
    if not job.handler:
        raise InvalidInput("handler", "", "is missing; name the code that shall run the job")
    return job


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(twice, twice, "is given twice; leave one out")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput("line", name, "is no JSON number")


def _set_payload(job: JobSpec, fields: Mapping[str, object]) -> None:
    given = [name for name in _PAYLOAD_TYPES if name in fields]
    if len(given) > 1:
        raise InvalidInput(given[1], given[1], f"stands beside {given[0]}; give one of them")
    for name in given:
        job.payload = _payload(name, fields[name])
        job.content_type = job.content_type or _PAYLOAD_TYPES[name]


def _payload(name: str, value: object) -> bytes:
    try:
        if name == "payload":
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        text = _text(value)
        return text.encode() if name == "payload_text" else base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise InvalidInput(name, value, f"cannot be sent: {error}") from None


Setter = Callable[[Message, str, object], None]


def _set(message: Message, name: str, value: object, setters: Mapping[str, Setter], path: str) -> None:
    setter = setters.get(name)
    if setter is None:
        raise InvalidInput(path, name, f"is no field; known are {', '.join([*setters, *_extra(setters)])}")
    try:
        setter(message, name, value)
    except InvalidInput:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidInput(path, value, str(error)) from None


def _extra(setters: Mapping[str, Setter]) -> Iterable[str]:
    return _PAYLOAD_TYPES if setters is _FIELDS else ()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("has to be a string")
    return value


def _set_text(message: Message, name: str, value: object) -> None:
    setattr(message, name, _text(value))


def _set_integer(message: Message, name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("has to be a whole number")
    setattr(message, name, value)


def _set_number(message: Message, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("has to be a number")
    setattr(message, name, value)


def _set_texts(message: Message, name: str, value: object) -> None:
    if not isinstance(value, list):
        raise ValueError("has to be a list of strings")
    field = getattr(message, name)
    del field[:]
    field.extend([_text(each) for each in value])


def _set_labels(message: Message, name: str, value: object) -> None:
    if not isinstance(value, dict):
        raise ValueError("has to be an object of strings")
    field = getattr(message, name)
    field.clear()
    field.update({key: _text(each) for key, each in value.items()})


def _set_instant(message: Message, name: str, value: object) -> None:
    getattr(message, name).FromDatetime(parse_instant(_text(value)))


def _set_duration(message: Message, name: str, value: object) -> None:
    if isinstance(value, str):
        span = parse_duration(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e10:
        span = timedelta(seconds=value)
    else:
        raise ValueError("has to be a duration such as 5m, or a number of seconds")
    getattr(message, name).FromTimedelta(span)


def _nested(setters: Mapping[str, Setter]) -> Setter:
    def set_message(message: Message, name: str, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"has to be an object with {', '.join(setters)}")
        inner = getattr(message, name)
        inner.SetInParent()
        for inner_name, inner_value in value.items():
            _set(inner, inner_name, inner_value, setters, f"{name}.{inner_name}")

    return set_message


_RETRY: Mapping[str, Setter] = {
    "max_attempts": _set_integer,
    "initial_delay": _set_duration,
    "multiplier": _set_number,
    "max_delay": _set_duration,
    "non_retryable_error_types": _set_texts,
}
_TIMEOUTS: Mapping[str, Setter] = {
    "start_timeout": _set_duration,
    "attempt_timeout": _set_duration,
    "total_timeout": _set_duration,
}
_FIELDS: Mapping[str, Setter] = {
    "handler": _set_text,
    "content_type": _set_text,
    "name": _set_text,
    "priority": _set_integer,
    "due_at": _set_instant,
    "delay": _set_duration,
    "retry": _nested(_RETRY),
    "timeouts": _nested(_TIMEOUTS),
    "dedupe_key": _set_text,
    "dedupe_ttl": _set_duration,
    "concurrency_key": _set_text,
    "concurrency_limit": _set_integer,
    "labels": _set_labels,
    "traceparent": _set_text,
}
