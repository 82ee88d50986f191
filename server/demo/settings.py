"""What a demo is asked to do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from server.domain.errors import InvalidInput

# Each node takes about 16 of PostgreSQL's 200 connections.
MAX_NODES: Final = 8
MAX_WORKERS: Final = 16


class Kill(StrEnum):
    """What is killed half-way."""

    NONE = "none"
    WORKER = "worker"
    NODE = "node"


class CoordinatorKind(StrEnum):
    """Who grants leases of shards."""

    POSTGRES = "postgres"
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Raises `InvalidInput` for numbers out of range."""

    jobs: int = 20_000
    nodes: int = 3
    workers: int = 3
    kill: Kill = Kill.NODE
    """The first of its kind is killed; the only one of its kind is started again at once."""
    coordinator: CoordinatorKind = CoordinatorKind.POSTGRES

    def __post_init__(self) -> None:
        if not 100 <= self.jobs <= 1_000_000:
            raise InvalidInput("jobs", self.jobs, "has to be from 100 to 1000000")
        for name, most in (("nodes", MAX_NODES), ("workers", MAX_WORKERS)):
            if not 1 <= getattr(self, name) <= most:
                raise InvalidInput(name, getattr(self, name), f"has to be from 1 to {most}")
