"""The file with the first token."""

import os
from pathlib import Path
from typing import Final

from server.access import secret
from server.cli.failure import InputRefused

_FIELD: Final = "admin_token_file"


def read_token(file: Path) -> str | None:
    """Return the token that is in a file, None if there is no such file yet.

    Raises `InputRefused` for a file that cannot be read, and `InvalidInput` for one that holds no token.
    """
    try:
        text = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        if not file.parent.is_dir():
            raise InputRefused(f"--admin-token-file: there is no folder {file.parent}; make it first") from None
        return None
    except OSError as error:
        raise InputRefused(f"--admin-token-file: cannot read {file}: {error.strerror}") from error
    return secret.check(text.strip(), _FIELD)


def write_token(file: Path) -> str:
    """Put a new token into a new file that its owner alone can read, and return it.

    Raises `InputRefused` if that cannot be.
    """
    token = secret.draw()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(token + "\n")
    except OSError as error:
        raise InputRefused(f"--admin-token-file: cannot write {file}: {error.strerror}") from error
    return token
