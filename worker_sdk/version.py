"""The version of the package, from whichever distribution brought it."""

from importlib import metadata


def _installed_version() -> str:
    for distribution in ("shardwheel-sdk", "shardwheel"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


__version__ = _installed_version()

SDK = f"python/{__version__}"
"""How a worker introduces itself."""
