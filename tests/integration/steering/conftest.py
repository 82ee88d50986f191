"""Clusters of three real nodes, on each coordinator."""

import itertools
import os

import pytest

_paths = itertools.count(1)


@pytest.fixture(params=["postgres", "zookeeper"])
def leases(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of nodes that make them share a coordinator of their own."""
    if request.param == "postgres":
        return {"coordinator": "postgres"}
    servers = request.getfixturevalue("zookeeper")
    return {"coordinator": "zookeeper", "zookeeper": f"{servers}/steering-{os.getpid()}/{next(_paths)}"}
