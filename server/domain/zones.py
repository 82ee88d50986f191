"""Time zones by their IANA names, the same on every machine.

`zoneinfo.ZoneInfo(name)` prefers the operating system's database, which differs between machines and may be missing;
then two nodes could compute different firings. Zones are therefore read from the files of the installed `tzdata`
package only, and only names in its own list of zones are known, so a name is never used as a path.
"""

from functools import lru_cache
from importlib import metadata, resources
from zoneinfo import ZoneInfo

from server.domain.errors import InvalidInput

DEFAULT_ZONE = "UTC"
MAX_NAME_CHARS = 64

# In the list, but means "not set up yet".
_NO_ZONE = "Factory"


@lru_cache(maxsize=1024)
def load_zone(name: str = DEFAULT_ZONE) -> ZoneInfo:
    """Return the zone `name`. Raise InvalidInput for a name that is not in the IANA list; letter case matters."""
    if len(name) > MAX_NAME_CHARS:
        raise InvalidInput("time_zone", name, f"has more than {MAX_NAME_CHARS} characters; give an IANA name")
    if name not in zone_names():
        raise InvalidInput("time_zone", name, _unknown_reason(name))
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Return all names that `load_zone` knows."""
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(names) - {_NO_ZONE}


def tzdata_version() -> str:
    """Return the version of the zone data in use, such as 2026.1. Nodes with the same one agree on all firings."""
    return metadata.version("tzdata")


def _unknown_reason(name: str) -> str:
    folded = name.strip().casefold().replace(" ", "_")
    near = next((known for known in sorted(zone_names()) if known.casefold() == folded), None)
    if near is not None:
        return f"is not an IANA time zone; do you mean {near}?"
    return "is not an IANA time zone; give a name such as UTC or Europe/Paris"
