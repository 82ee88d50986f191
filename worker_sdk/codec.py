"""How payloads and results become bytes and back."""

from collections.abc import Callable
from typing import Protocol

from worker_sdk.errors import PayloadError
from worker_sdk.json_text import dump_json, load_json
from worker_sdk.json_types import compile_decoder

BYTES_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"

DecodePayload = Callable[[bytes, str], object]
"""Turns a payload and its content type into the value that the handler gets."""


class Codec(Protocol):
    """Turns typed values into bytes and back. `bytes` values never reach it: they are passed as they are."""

    @property
    def content_type(self) -> str:
        """Media type of what `encode` returns."""
        ...

    def encode(self, value: object) -> bytes:
        """Return the value as bytes. Raises `PayloadError` if it has no such form."""
        ...

    def decoder(self, annotation: object) -> Callable[[bytes], object]:
        """Return a function that makes a value of the annotated type (`typing.Any`: whatever is in the bytes).

        Called once per handler. Raises `ConfigurationError` if the type is not supported; the function raises
        `PayloadError` for bytes that do not fit.
        """
        ...


class JsonCodec:
    """JSON, the default. Which types it knows is described in `worker_sdk.json_text` and `worker_sdk.json_types`."""

    content_type = JSON_TYPE

    def encode(self, value: object) -> bytes:
        """Return the value as compact JSON in UTF-8."""
        return dump_json(value)

    def decoder(self, annotation: object) -> Callable[[bytes], object]:
        """Return a function that makes a value of the annotated type from a JSON text. No bytes at all mean null."""
        convert = compile_decoder(annotation)

        def decode(data: bytes) -> object:
            return convert(load_json(data) if data else None, "payload")

        return decode


def encode_value(codec: Codec, value: object) -> tuple[bytes, str]:
    """Return a payload or result as bytes with its content type. None is no bytes, `bytes` are passed as they are."""
    if value is None:
        return b"", ""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), BYTES_TYPE
    return codec.encode(value), codec.content_type


def payload_decoder(codec: Codec, annotation: object, *, annotated: bool) -> DecodePayload:
    """Return the function that decodes a handler's payloads.

    Without an annotation the content type decides: the codec's own is decoded, anything else is given as `bytes`.
    """
    if annotation is bytes:
        return _as_bytes
    decode = codec.decoder(annotation)
    if annotated:
        return lambda data, content_type: decode(data)
    own = codec.content_type

    def decode_by_type(data: bytes, content_type: str) -> object:
        if not data:
            return None
        return decode(data) if content_type in (own, "") else data

    return decode_by_type


def _as_bytes(data: bytes, content_type: str) -> object:
    return data


def checked_size(data: bytes, limit: int, what: str) -> bytes:
    """Return the data, or raise `PayloadError` if it is larger than `limit` bytes."""
    if len(data) > limit:
        raise PayloadError(
            f"{what} is {len(data)} bytes, more than the limit of {limit}; store it elsewhere and pass a reference"
        )
    return data
