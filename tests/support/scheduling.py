"""Which tests pytest-xdist keeps together."""

from typing import Final

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_WITH_CLUSTERS: Final = ("tests/cluster/", "tests/clients/")


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """By file; but all tests with clusters of processes together."""

    def _split_scope(self, nodeid: str) -> str:
        return "clusters" if nodeid.startswith(_WITH_CLUSTERS) else nodeid.partition("::")[0]
