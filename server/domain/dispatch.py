"""Ways in which the due jobs of a handler reach its workers, and the lease that published jobs belong to."""

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Final

MIN_QUEUE_TIMEOUT: Final = timedelta(seconds=1)
MAX_QUEUE_TIMEOUT: Final = timedelta(days=7)
MAX_UNFINISHED: Final = 1_000_000
# What the names of leases of topics begin with.
QUEUE_PREFIX: Final = "kafka:"
# The limit and the alphabet of Kafka.
MAX_TOPIC_CHARS: Final = 249
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")


class DispatchMode(IntEnum):
    """How jobs are handed out; the numbers are the ones stored."""

    STREAM = 0
    KAFKA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """How a handler's jobs are handed out.

    `queue_timeout`: a published job that no consumer has started after this time is published again.
    `max_unfinished`: so many jobs of the handler may be published and not finished, in the whole cluster.
    """

    mode: DispatchMode = DispatchMode.STREAM
    queue_timeout: timedelta = timedelta(minutes=5)
    max_unfinished: int = 10_000


def queue_lease(handler_id: int) -> int:
    """Return what stands for the lease of a handler's topic where the number of a worker is expected."""
    return -handler_id


def is_queue_lease(worker_id: int) -> bool:
    """Whether a job is held by its handler's topic: it was published, and no consumer has started it."""
    return worker_id < 0


def share_of_unfinished(max_unfinished: int, owned_shards: int, shards: int) -> int:
    """Return how many unfinished jobs a node may have that serves `owned_shards`: at least one if it serves any."""
    return max(max_unfinished * owned_shards // shards, min(owned_shards, 1))


def topic_of(namespace: str, handler: str) -> str:
    """Return the topic of a handler's jobs, which is also the name of its consumers' group."""
    return f"shardwheel.{namespace}.{handler}"


def topic_fault(namespace: str, handler: str) -> str | None:
    """Return why a handler cannot have a topic, None if it can."""
    topic = topic_of(namespace, handler)
    if not _TOPIC.fullmatch(topic):
        return "cannot be the name of a Kafka topic, which takes letters, digits and ._- only; use another handler name"
    if len(topic) > MAX_TOPIC_CHARS:
        return f"makes a Kafka topic of {len(topic)} characters, more than {MAX_TOPIC_CHARS}; use a shorter name"
    return None
