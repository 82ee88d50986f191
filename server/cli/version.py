"""The version of the installed package."""

from importlib import metadata


def installed_version() -> str:
    """Return the version, or "unknown" for a tree that is not installed."""
    try:
        return metadata.version("shardwheel")
    except metadata.PackageNotFoundError:
        return "unknown"
