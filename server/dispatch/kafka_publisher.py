"""Publishes claimed jobs to the topics of their handlers.

The producer is idempotent and sends in batches. A job counts as published as soon as the producer has taken it; what no
broker has confirmed in time comes back as undelivered, whether it arrived or not: a message that did arrive is refused
by its claim. When the broker is away, everything that is under way is given back, the producer is thrown away with all
that it believes of the broker, and a new one is made once the broker answers; meanwhile nothing is taken.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from server.dispatch.kafka_message import headers_of, key_of
from server.dispatch.kafka_settings import admin_settings, producer_settings, read_properties
from server.domain.errors import InvalidInput
from server.domain.job import AttemptRef, ClaimedJob
from server.engine.loops import Backoff

log = logging.getLogger(__name__)

# Larger payloads stay in the database until the attempt starts: with headers, brokers take 1 MiB a message by default.
MAX_INLINE_BYTES: Final = 512 * 1024
_ANSWER_S: Final = 3.0
_LOOK_S: Final = 0.05
_CLOSE_S: Final = 1.0
# A connection that lasted this long was a success: the next try comes soon.
_STABLE_S: Final = 10.0
# A producer that was full takes jobs again when it holds no more messages than this.
_CALM: Final = 10_000
# Leaves the number of copies to the broker.
_DEFAULT_REPLICATION: Final = -1


class KafkaPublisher:
    """Implements `Publisher` with librdkafka. Used in one event loop."""

    def __init__(
        self,
        *,
        servers: str,
        properties_file: str,
        partitions: int,
        undelivered: Callable[[Sequence[AttemptRef]], None],
        wake: Callable[[], None],
    ) -> None:
        """Publish to the cluster behind `servers`; topics are made with `partitions`. Raises `InvalidInput`.

        `undelivered` takes attempts that were not published, `wake` is called when jobs can be published again.
        """
        properties = read_properties(properties_file)
        self._settings = producer_settings(servers, properties)
        try:
            # The stubs know no settings that are functions.
            settings: dict[str, Any] = {**admin_settings(servers, properties), "error_cb": self._note_reason}
            self._admin = AdminClient(settings)
            Producer(self._settings)
        except KafkaException as error:
            raise InvalidInput("kafka_config", properties_file, error.args[0].str()) from error
        self._partitions = partitions
        self._undelivered = undelivered
        self._wake = wake
        self._producer: Producer | None = None
        self._topics: dict[int, str] = {}
        self._ready: set[str] = set()
        """Topics that exist."""
        self._lost: deque[AttemptRef] = deque()
        self._inline_bytes = MAX_INLINE_BYTES
        self._full = False
        self._trouble = ""
        self._reason = ""
        """What the client for topics complained about last."""
        self.published = 0
        self.returned = 0
        """Jobs that went back because no broker confirmed them."""

    @property
    def connected(self) -> bool:
        """Whether the broker answers."""
        return self._producer is not None

    def open(self, handler_id: int, topic: str) -> None:
        """See `Publisher`."""
        self._topics[handler_id] = topic

    def close(self, handler_id: int) -> None:
        """See `Publisher`."""
        self._topics.pop(handler_id, None)

    def takes(self, handler_id: int) -> bool:
        """See `JobBroker`."""
        if self._producer is None or self._trouble or self._full:
            return False
        return self._topics.get(handler_id) in self._ready

    def publish(self, handler_id: int, jobs: Sequence[ClaimedJob]) -> bool:
        """See `JobBroker`."""
        producer, topic = self._producer, self._topics.get(handler_id)
        if producer is None or topic is None:
            return False
        for number, job in enumerate(jobs):
            left_out = len(job.payload) > self._inline_bytes
            try:
                producer.produce(
                    topic,
                    key=key_of(job),
                    value=b"" if left_out else job.payload,
                    headers=headers_of(job, left_out=left_out),
                    on_delivery=partial(self._not_delivered, job.ref, len(job.payload)),
                )
            except (BufferError, KafkaException) as error:
                # More than the producer may hold: the broker is too slow for what is published.
                log.warning("jobs not published", extra={"jobs": len(jobs) - number, "error": str(error)})
                self._lost.extend(one.ref for one in jobs[number:])
                self._full = True
                break
            self.published += 1
        return True

    async def run(self) -> None:
        """See `Publisher`."""
        backoff = Backoff()
        while True:
            began = time.monotonic()
            try:
                await self._find_broker()
                await self._serve()
            except Exception as error:
                if not backoff.failures:
                    extra = {"error": str(error), "reason": self._reason}
                    log.warning("jobs of published handlers wait for Kafka", extra=extra)
            finally:
                try:
                    await self._part()
                except Exception:
                    log.exception("parting with Kafka failed")
            if time.monotonic() - began > _STABLE_S:
                backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def stop(self, grace_s: float) -> None:
        """See `Publisher`."""
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, grace_s)
        await self._part()

    async def _find_broker(self) -> None:
        """Wait until the broker answers, then make a producer. Raises `KafkaException` if it does not answer."""
        try:
            await asyncio.to_thread(self._admin.list_topics, timeout=_ANSWER_S)
        finally:
            self._admin.poll(0)
        self._trouble, self._full = "", False
        self._ready.clear()
        self._producer = Producer({**self._settings, "error_cb": self._on_error})
        log.info("connected to Kafka")

    async def _serve(self) -> None:
        """Hand back what was not delivered, and make topics, until there is trouble with the broker."""
        while not self._trouble and self._producer is not None:
            self._producer.poll(0)
            self._give_back()
            if self._full and len(self._producer) <= _CALM:
                self._full = False
                self._wake()
            missing = set(self._topics.values()) - self._ready
            if missing:
                await self._make_topics(sorted(missing))
            else:
                await asyncio.sleep(_LOOK_S)
        if self._trouble:
            log.warning("Kafka is away", extra={"error": self._trouble})

    async def _make_topics(self, topics: Sequence[str]) -> None:
        """Make topics as far as they do not exist."""
        for topic in topics:
            new = NewTopic(topic, num_partitions=self._partitions, replication_factor=_DEFAULT_REPLICATION)
            future = self._admin.create_topics([new], operation_timeout=_ANSWER_S, request_timeout=_ANSWER_S)[topic]
            try:
                await asyncio.to_thread(future.result, 2 * _ANSWER_S)
                log.info("topic made", extra={"topic": topic, "partitions": self._partitions})
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS and not await self._exists(topic):
                    raise
            self._ready.add(topic)
        self._wake()

    async def _exists(self, topic: str) -> bool:
        """Whether a topic is there that this client may not be allowed to make."""
        found = (await asyncio.to_thread(self._admin.list_topics, topic, timeout=_ANSWER_S)).topics.get(topic)
        return found is not None and found.error is None

    async def _part(self) -> None:
        """Throw the producer away and give back what it held."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        await asyncio.to_thread(producer.flush, _CLOSE_S)
        self._give_back()

    def _note_reason(self, error: KafkaError) -> None:
        self._reason = error.str()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._trouble = self._trouble or error.str()

    def _not_delivered(self, ref: AttemptRef, payload_bytes: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            return
        self._lost.append(ref)
        match error.code():
            case KafkaError.MSG_SIZE_TOO_LARGE:
                self._inline_bytes = min(self._inline_bytes, max(payload_bytes - 1, 0))
            case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC | KafkaError._UNKNOWN_PARTITION:
                self._ready.clear()
            case KafkaError._PURGE_QUEUE | KafkaError._PURGE_INFLIGHT:
                pass
            case _:
                self._trouble = self._trouble or error.str()

    def _give_back(self) -> None:
        lost = []
        while self._lost:
            lost.append(self._lost.popleft())
        if lost:
            self.returned += len(lost)
            log.warning("jobs go back: no broker has confirmed them", extra={"jobs": len(lost)})
            self._undelivered(lost)
