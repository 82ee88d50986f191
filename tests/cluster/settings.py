"""Settings of nodes that share a cluster: shorter than the defaults, and long enough for three nodes on two cores."""

from collections.abc import Mapping
from typing import Final

from tests.cluster.cluster import QUICK

CLUSTER: Final[Mapping[str, str]] = {
    **QUICK,
    "heartbeat": "1s",
    "worker_lease": "6s",
    "reset_grace": "3s",
    "session_ttl": "5s",
    "drain_grace": "3s",
    "hot_connections": "6",
    "api_connections": "4",
}
