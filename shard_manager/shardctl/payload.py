"""Payloads: where they come from and which media type they get."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from shard_manager.shardctl.failure import RefusedInputError

# Above the hard limit of the API for one payload: whatever is longer is refused without being read to its end.
MAX_BYTES = 1024 * 1024

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
BINARY_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes with their media type."""

    data: bytes
    content_type: str


def read_payload(argument: str | None, file: Path | None, content_type: str | None) -> Payload | None:
    """The payload given as text, as `-` for stdin, or as a file; None if none was given.

    Raises RefusedInputError if two were given, if the file cannot be read or if it is larger than 1 MiB.
    """
    if argument is not None and file is not None:
        raise RefusedInputError("error: payload: give either PAYLOAD or --payload-file, not both")
    if file is not None and str(file) != "-":
        try:
            with file.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise RefusedInputError(f"error: --payload-file: cannot read {file}: {error.strerror}") from None
    elif file is not None or argument == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    elif argument is not None:
        # Arguments that are no UTF-8 arrive with surrogates; this gives back the bytes that were typed.
        data = argument.encode(errors="surrogateescape")
    else:
        return None
    if len(data) > MAX_BYTES:
        raise RefusedInputError(
            f"error: payload: larger than {MAX_BYTES} bytes; store it elsewhere and send a reference to it"
        )
    return Payload(data, content_type or guess_type(data))


def guess_type(data: bytes) -> str:
    """The media type of data that came without one: JSON if it is, else text if it is UTF-8; none for no data."""
    if not data:
        return ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return BINARY_TYPE
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return TEXT_TYPE
    return JSON_TYPE
