"""JSON from typed Python values, and its parsing.

Dataclasses and mappings are objects, `bytes` is base64, `datetime`, `date` and `time` are ISO 8601, `timedelta` is a
number of seconds, `UUID` and `Decimal` are strings, enums are their values. `worker_sdk.json_types` is the way back.
"""

import base64
import dataclasses
import enum
import json
import uuid
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal

from worker_sdk.errors import PayloadError

_parse = json.JSONDecoder().decode


def dump_json(value: object) -> bytes:
    """Return the value as compact JSON in UTF-8. Raises `PayloadError` if it has no JSON form."""
    try:
        text = json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        try:
            return text.encode()
        except UnicodeEncodeError:
            # A lone surrogate has no UTF-8 form, but an escaped JSON form.
            return json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{type(value).__name__} cannot be written as JSON: {error}") from error


def load_json(data: bytes) -> object:
    """Return the plain value of a JSON text. Raises `PayloadError` if it is none."""
    try:
        # Faster than json.loads, which looks for the encoding first.
        value: object = _parse(data.decode())
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"payload is not JSON: {error}") from error
    return value


def _plain(value: object) -> object:
    match value:
        case enum.Enum():
            return value.value
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case uuid.UUID() | Decimal():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case set() | frozenset() | tuple():
            return list(value)
        case Mapping():
            return dict(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON form")
