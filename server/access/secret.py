"""Secrets of tokens and nodes: drawn, checked, hashed."""

import hashlib
import re
import secrets
from typing import Final

from server.domain.errors import InvalidInput

_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[\x21-\x7e]{32,200}")


def draw() -> str:
    """Return a new secret of 256 bits, 43 characters that need no quoting anywhere."""
    return secrets.token_urlsafe(_BYTES)


def digest_of(secret: str) -> bytes:
    """Return what is stored and compared in place of a secret.

    One round of SHA-256 is enough: nobody can try all secrets of 256 bits, however fast each try is.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def check(secret: str, field: str) -> str:
    """Return a secret that people chose. Raises `InvalidInput` that names `field`, and does not show the secret."""
    if not _TOKEN.fullmatch(secret):
        raise InvalidInput(field, "***", "has to hold a token of 32 to 200 printable ASCII characters, without spaces")
    return secret
