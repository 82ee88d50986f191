"""Page tokens of lists of schedules: the name that a page ended with, bound to the filters that it was made with."""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

from server.api.validation import Problems

DEFAULT_SIZE: Final = 100
MAX_SIZE: Final = 1000
_DIGEST_BYTES: Final = 8
# A name of 200 bytes and the digest, in base64.
_MAX_CHARS: Final = 280


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    """Which schedules a list shows."""

    namespace: str
    prefix: str
    handler: str

    def token(self, last_name: str) -> str:
        """Return the token of the page behind `last_name`."""
        return base64.urlsafe_b64encode(self._digest(last_name) + last_name.encode()).decode()

    def read_token(self, problems: Problems, token: str) -> str:
        """Return the name that the page before ended with; empty for the first page."""
        if not token:
            return ""
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
            name = raw[_DIGEST_BYTES:].decode("ascii")
        except (UnicodeError, binascii.Error):
            raw, name = b"", ""
        if len(token) > _MAX_CHARS or not name or raw[:_DIGEST_BYTES] != self._digest(name):
            reason = (
                "has to be the next_page_token of the page before, with the same filters; leave it out to begin anew"
            )
            problems.add("page_token", ascii(token)[1:-1], reason)
            return ""
        return name

    def _digest(self, name: str) -> bytes:
        text = "\n".join((self.namespace, self.prefix, self.handler, name))
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).digest()


def page_size(problems: Problems, size: int) -> int:
    """Return how many schedules a page holds."""
    if size < 0:
        problems.add("page_size", size, "must not be negative; 0 means the default")
    return min(size or DEFAULT_SIZE, MAX_SIZE)
