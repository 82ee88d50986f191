"""Starting when others are not there yet: what is merely away is waited for, what can never work ends the start."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from server.engine.loops import Backoff
from server.store.errors import AccessDenied, Unavailable, UnknownOutcome
from shard_manager.errors import (
    CoordinatorFailed,
    CoordinatorUnavailable,
    ForeignCluster,
    NodeNameTaken,
    ShardCountMismatch,
)
from shard_manager.status import ManagerStatus

log = logging.getLogger(__name__)

REMIND_AFTER_S: Final = 30.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_MAX_S: Final = 2.0
_LOOK_S: Final = 0.05
# A session whose node has died is gone after half as long again as it says, and this: servers end sessions late.
_NAME_PATIENCE: Final = 1.5
_NAME_GRACE_S: Final = 3.0

T = TypeVar("T")


async def patiently(what: str, step: Callable[[], Awaitable[T]], waits_for: Callable[[str], None]) -> T:
    """Return what `step` returns, trying again as long as the database or ZooKeeper is away.

    `waits_for` is told what is waited for, and "" when it is there. The first failure is logged, each new text, and a
    reminder every half minute. Everything that waiting does not mend is raised.
    """
    backoff = Backoff(first_s=_RETRY_FIRST_S, limit_s=_RETRY_MAX_S)
    told, told_at = "", 0.0
    while True:
        try:
            done = await step()
        except AccessDenied:
            raise
        except (Unavailable, UnknownOutcome, CoordinatorUnavailable) as error:
            text = str(error).strip()
            waits_for(f"waits for {what}: {text}")
            if text != told or time.monotonic() - told_at >= REMIND_AFTER_S:
                log.warning("the start waits", extra={"what": what, "error": text})
                told, told_at = text, time.monotonic()
            await asyncio.sleep(backoff.next_s())
            continue
        waits_for("")
        if told:
            log.info("the start goes on", extra={"what": what})
        return done


async def until_joined(
    status: Callable[[], ManagerStatus], trouble: Callable[[], Exception | None], waits_for: Callable[[str], None]
) -> None:
    """Return when the node has joined its coordinator and seen the cluster once. `trouble` is what the manager retries.

    Raises `NodeNameTaken` if another live node has its name, `CoordinatorFailed`, `ForeignCluster` or
    `ShardCountMismatch`. A session of this name that may be that of a dead predecessor is waited for until it is over.
    """
    name = NameClaim()
    while True:
        now = status()
        if now.joined and now.members:
            waits_for("")
            return
        match trouble():
            case CoordinatorFailed() | ForeignCluster() | ShardCountMismatch() as error:
                raise error
            case NodeNameTaken() as taken if name.is_live(taken, time.monotonic()):
                raise taken
            case None:
                waits_for("joins the coordinator")
            case error:
                waits_for(f"waits for the coordinator: {error}")
        await asyncio.sleep(_LOOK_S)


class NameClaim:
    """Finds out whether the holder of a node's name lives: a dead one's session ends in its time."""

    def __init__(self) -> None:
        self._holder: int | None = None
        self._until_s = 0.0

    def is_live(self, taken: NodeNameTaken, now_s: float) -> bool:
        """Whether the same holder has outlived the session that it had when it was first seen; `now_s` is monotonic."""
        if taken.incarnation != self._holder:
            self._holder = taken.incarnation
            self._until_s = now_s + _NAME_PATIENCE * taken.expires_in_s + _NAME_GRACE_S
        return now_s >= self._until_s
