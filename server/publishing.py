"""Which handlers' jobs are published, and by what: between the catalog, the engine and the broker."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from server.config import NodeConfig
from server.domain.dispatch import DispatchMode, topic_of
from server.domain.errors import InvalidInput
from server.domain.job import AttemptRef
from server.engine.engine import Engine
from server.engine.ports import JobBroker
from server.observe.publish_metrics import PublishCounts
from server.store.catalog import Catalog, Handler

log = logging.getLogger(__name__)


class Publisher(JobBroker, PublishCounts, Protocol):
    """A broker with a topic for each published handler."""

    def open(self, handler_id: int, topic: str) -> None:
        """Make sure that there is a topic for a handler's jobs, from now on."""

    def close(self, handler_id: int) -> None:
        """Publish a handler's jobs no more. The topic stays."""

    async def run(self) -> None:
        """Keep the connection to the broker, for ever."""

    async def stop(self, grace_s: float) -> None:
        """Send what is under way, for `grace_s` at most."""


def open_publisher(
    config: NodeConfig, undelivered: Callable[[Sequence[AttemptRef]], None], wake: Callable[[], None]
) -> Publisher | None:
    """Return what publishes jobs, None if the node was given no broker; raises `InvalidInput`.

    `undelivered` takes attempts that were not published, `wake` is called when jobs can be published again.
    """
    if not config.kafka:
        return None
    try:
        # An extra: only nodes with a broker need the package.
        from server.dispatch.kafka_publisher import KafkaPublisher
    except ImportError as error:
        reason = f"needs the package confluent-kafka ({error}): pip install 'shardwheel[kafka]'"
        raise InvalidInput("kafka", config.kafka, reason) from error
    return KafkaPublisher(
        servers=config.kafka,
        properties_file=config.kafka_config,
        partitions=config.kafka_partitions,
        undelivered=undelivered,
        wake=wake,
    )


class Publishing:
    """Tells the engine and the broker which handlers' jobs are published."""

    def __init__(self, engine: Engine, catalog: Catalog, publisher: Publisher | None) -> None:
        self._engine = engine
        self._catalog = catalog
        self._publisher = publisher
        if publisher is not None:
            engine.queues.broker = publisher

    @property
    def available(self) -> bool:
        """Whether this node was given a broker."""
        return self._publisher is not None

    async def load(self) -> None:
        """Take in all published handlers. To be called before the engine starts."""
        for handler in await self._catalog.published_handlers():
            await self.seen(handler)

    async def seen(self, handler: Handler) -> None:
        """Take in how the database says that a handler's jobs are handed out."""
        published = handler.dispatch.mode is DispatchMode.KAFKA
        if self._publisher is None:
            if published and not self._engine.queues.is_open(handler.handler_id):
                log.warning("jobs of a handler wait for nodes with --kafka", extra={"handler": handler.name})
        elif published:
            namespace = await self._catalog.namespace_name(handler.namespace_id)
            self._publisher.open(handler.handler_id, topic_of(namespace, handler.name))
        else:
            self._publisher.close(handler.handler_id)
        self._engine.dispatch_seen(handler.handler_id, handler.dispatch)

    async def changed(self, handler: Handler) -> None:
        """Take in a change that was requested of this node, and have the others take it in."""
        await self.seen(handler)
        self._engine.handlers_changed()
