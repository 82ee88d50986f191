"""Faults of single back ends of PostgreSQL: stopped (SIGSTOP) with whatever they hold, and going on later."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import Blow, Fault, around_a_session, register
from tests.support.postgres_sessions import list_sessions

_SOME: Final = 4


@asynccontextmanager
async def _stop(cluster: Cluster, blow: Blow) -> AsyncIterator[Sequence[str]]:
    """Stop up to four back ends of nodes: one that is stopped in a statement keeps its locks."""
    try:
        found = await asyncio.to_thread(list_sessions, cluster.dsn, "shardwheel")
    except psycopg.OperationalError:
        found = []
    victims = blow.draw.sample(found, min(_SOME, len(found)))
    stopped = [pid for pid in victims if _signal(pid, signal.SIGSTOP)]
    try:
        yield [f"back end {pid}" for pid in stopped]
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal, unless the process is gone; say whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


STOP_BACKENDS: Final = register(Fault(kind="stop_backends", strike=_stop, hold_s=around_a_session)).kind
