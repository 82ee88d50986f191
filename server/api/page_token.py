"""Page tokens: where a list goes on, bound to the filters it was made with.

A token is base64 of a version byte, the cursor, and a digest over both and the filters. It is not secret and protects
nothing: whoever changes it could only start at another place of a list that is checked anew on every page. The digest
tells a damaged token, or one of another list, from a good one.
"""

import base64
import hashlib
import struct
from collections.abc import Sequence
from typing import Final

import orjson

_VERSION: Final = 1
_LAYOUT: Final = struct.Struct("!Bq12s")


def encode_token(cursor: int, filters: Sequence[object]) -> str:
    """Return the token that goes on after `cursor`; `filters` are plain JSON values."""
    packed = _LAYOUT.pack(_VERSION, cursor, _digest(cursor, filters))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_token(token: str, filters: Sequence[object]) -> int | None:
    """Return the cursor of a token; None if it is damaged or belongs to a list with other filters."""
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        version, cursor, digest = _LAYOUT.unpack(packed)
    except (ValueError, struct.error):
        return None
    # What was encoded last could also be read with other padding bits; only the one true form is accepted.
    sound = version == _VERSION and cursor > 0 and digest == _digest(cursor, filters)
    return cursor if sound and encode_token(cursor, filters) == token else None


def _digest(cursor: int, filters: Sequence[object]) -> bytes:
    return hashlib.sha256(orjson.dumps([_VERSION, cursor, list(filters)], option=orjson.OPT_SORT_KEYS)).digest()[:12]
