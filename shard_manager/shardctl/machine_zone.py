"""The time zone that this machine is set to, by which its cron runs."""

import os
from pathlib import Path

from server.domain.errors import InvalidInput
from server.domain.zones import load_zone

_MARK = "/zoneinfo/"
# Variants of the whole database, kept beside it under these names.
_VARIANTS = ("posix/", "right/")


def machine_zone(root: Path = Path("/")) -> str | None:
    """The IANA name behind /etc/localtime, else the one in /etc/timezone; None if neither names a known zone."""
    for name in (_of_link(root / "etc/localtime"), _of_file(root / "etc/timezone")):
        if name and _known(name):
            return name
    return None


def _of_link(link: Path) -> str:
    try:
        target = os.readlink(link)
    except OSError:
        return ""
    _, mark, name = target.partition(_MARK)
    for variant in _VARIANTS:
        name = name.removeprefix(variant)
    return name if mark else ""


def _of_file(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")[:100].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _known(name: str) -> bool:
    try:
        load_zone(name)
    except InvalidInput:
        return False
    return True
