"""Where payloads come from."""

from pathlib import Path

import pytest

from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.payload import MAX_BYTES, Payload, guess_type, read_payload


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (b"", ""),
        (b'{"a": 1}', "application/json"),
        (b"5", "application/json"),
        (b"hello", "text/plain; charset=utf-8"),
        (b"[" * 100_000, "text/plain; charset=utf-8"),
        (b"\xff", "application/octet-stream"),
    ],
)
def test_the_type_follows_the_bytes(data: bytes, content_type: str) -> None:
    assert guess_type(data) == content_type


def test_text_and_file_and_neither(tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\x01\xff")
    assert read_payload("5", None, None) == Payload(b"5", "application/json")
    assert read_payload(None, file, None) == Payload(b"\x00\x01\xff", "application/octet-stream")
    assert read_payload(None, file, "image/x-icon") == Payload(b"\x00\x01\xff", "image/x-icon")
    assert read_payload(None, None, "image/x-icon") is None


def test_what_cannot_be_read_is_refused_naming_the_option(tmp_path: Path) -> None:
    with pytest.raises(RefusedInputError, match="not both"):
        read_payload("x", tmp_path, None)
    with pytest.raises(RefusedInputError, match=r"--payload-file: cannot read .*No such file"):
        read_payload(None, tmp_path / "none", None)
    with pytest.raises(RefusedInputError, match=r"--payload-file: cannot read .*directory"):
        read_payload(None, tmp_path, None)


def test_a_payload_above_the_limit_is_refused_and_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"x" * MAX_BYTES)
    payload = read_payload(None, file, None)
    assert payload is not None
    assert len(payload.data) == MAX_BYTES
    with pytest.raises(RefusedInputError, match="larger than 1048576 bytes"):
        read_payload(None, Path("/dev/zero"), None)
