"""Telling of failures that are retried: the first of a streak, each new kind, a reminder now and then, and the end."""

import logging
from collections.abc import Callable
from typing import Final

from shard_manager.errors import ShardManagerError
from shard_manager.events import ManagerEvent, TroubleBegan, TroubleOver

logger = logging.getLogger(__name__)

REMIND_AFTER_S: Final = 30.0


class Trouble:
    """The streak of failures of one loop, which is `doing` something. Times are seconds of any monotonic clock."""

    def __init__(self, doing: str, node: str, emit: Callable[[ManagerEvent], None]) -> None:
        self._doing = doing
        self._node = node
        self._emit = emit
        self._failures = 0
        self._told_s = 0.0
        self.error: Exception | None = None

    def failed(self, error: Exception, now_s: float) -> None:
        """Note a failure; logs it unless the same kind was told of lately."""
        self._failures += 1
        news = type(error) is not type(self.error)
        self.error = error
        if not news and now_s - self._told_s < REMIND_AFTER_S:
            return
        self._told_s = now_s
        extra = {"doing": self._doing, "node": self._node, "error": str(error), "failures": self._failures}
        # Our own errors say everything in their text; a stack trace is worth its lines only for the others.
        logger.warning(
            "shard manager in trouble, retrying", extra=extra,
            exc_info=None if isinstance(error, ShardManagerError) else error,
        )  # fmt: skip
        if news:
            self._emit(TroubleBegan(doing=self._doing, error=error))

    def over(self) -> None:
        """Note a success; logs the end of a streak."""
        if self.error is None:
            return
        logger.info(
            "shard manager out of trouble",
            extra={"doing": self._doing, "node": self._node, "failures": self._failures},
        )
        self._emit(TroubleOver(doing=self._doing, failures=self._failures))
        self.error = None
        self._failures = 0
