"""What is said to ZooKeeper and what it answers: states, refusals, operations of a transaction."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias


class LinkDown(Exception):
    """No connection, or it broke during the call, which may or may not have happened."""


class LinkLost(Exception):
    """The session is over."""


class LinkRefused(Exception):
    """An answer that a retry alone does not mend, such as a lack of rights."""


class Reason(StrEnum):
    """Why a transaction was refused."""

    ABSENT = "absent"
    EXISTS = "exists"
    CHANGED = "changed"


class Refused(Exception):
    """A transaction failed as a whole because of its operation number `index`; nothing of it happened."""

    def __init__(self, index: int, reason: Reason) -> None:
        super().__init__(f"operation {index}: {reason}")
        self.index = index
        self.reason = reason


class LinkState(StrEnum):
    """What is known of the session. In all but LOST its leases may still hold."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Stat:
    """Of a znode: the transactions that made it and that last changed its children, when it was made by the server's
    clock, its version, its session (0: it is not ephemeral)."""

    made_by: int
    made_at: datetime
    children_by: int
    version: int
    session: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a znode; a sequential one gets its number appended to its path."""

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    path: str


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the transaction unless the znode is there, and has this version (-1: any)."""

    path: str
    version: int = -1


Operation: TypeAlias = Create | Delete | SetData | Check
