"""Reads the topic of one handler, in a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from worker_sdk.errors import ConfigurationError
from worker_sdk.kafka_settings import KafkaSettings

_POLL_S = 0.1
# So long a reader without room waits before it pauses its partitions, and how often it polls then: a consumer that does
# not poll is taken for dead by its group.
_STALL_S = 0.3
_REPEAT_WARNING_S = 30.0
_LEFT_OUT = b"left-out"

_log = logging.getLogger("worker_sdk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message: a published job, and its place in the topic."""

    job_id: int
    claim: int
    payload: bytes
    left_out: bool
    """Whether the payload has to be asked for."""
    traceparent: str
    """Trace context of the publication; empty if there is none."""
    partition: int
    offset: int


class KafkaReader:
    """Delivers as many messages as it was allowed, and stores offsets. Its methods may be called from any thread."""

    def __init__(
        self, settings: KafkaSettings, topic: str, deliver: Callable[[Sequence[Received]], None],
        unreadable: Callable[[int, int], None], revoked: Callable[[Sequence[int]], None],
    ) -> None:  # fmt: skip
        """Read a topic as a member of the group of its name. Raises `ConfigurationError` for unusable settings.

        The rest is called in the reader's thread, and must not block: `deliver` with jobs, `unreadable` with partition
        and offset of a message that is none of Shardwheel's, `revoked` with partitions that others read from now on.
        """
        self.topic = topic
        self._deliver = deliver
        self._unreadable = unreadable
        self._revoked = revoked
        try:
            self._consumer = Consumer({**settings.consumer(topic), "error_cb": self._on_error})
        except KafkaException as error:
            raise ConfigurationError(f"kafka: {error.args[0].str()}") from error
        self._room = 0
        self._offsets: dict[int, int] = {}
        self._lock = threading.Lock()
        """Guards the room and the offsets."""
        self._wake = threading.Event()
        self._stopping = False
        self._paused = False
        self._warned_at = -_REPEAT_WARNING_S
        self._thread = threading.Thread(target=self._run, name=f"shardwheel-{topic}", daemon=True)

    def start(self) -> None:
        """Join the group and read."""
        self._thread.start()

    def allow(self, messages: int) -> None:
        """Deliver so many more messages."""
        with self._lock:
            self._room += messages
        self._wake.set()

    def store(self, partition: int, offset: int) -> None:
        """Have an offset committed: every message before it is done with."""
        with self._lock:
            self._offsets[partition] = offset

    def stop(self) -> None:
        """Begin to leave the group, after a commit of what was stored."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until the reader has left the group; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self._stopping:
            try:
                self._store_offsets()
                self._read(self._room)
            except Exception as error:  # the reader goes on whatever happens to a message or a broker
                self._warn(error)
                time.sleep(_POLL_S)
        try:
            self._store_offsets()
            self._consumer.close()
        except (KafkaException, RuntimeError) as error:
            _log.warning("topic %s: not left in order: %s", self.topic, error)

    def _read(self, room: int) -> None:
        if room <= 0:
            self._wake.clear()
            # Room that came before the flag was lowered is seen in the next round at the latest.
            if self._room > 0 or self._wake.wait(_STALL_S):
                return
            self._pause()
        elif self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False
        first = self._consumer.poll(0.0 if room <= 0 else _POLL_S)
        if first is None:
            return
        messages = [first, *(self._consumer.consume(room - 1, 0.0) if room > 1 else ())]
        received = [one for message in messages if (one := self._take(message)) is not None]
        if received:
            with self._lock:
                self._room -= len(received)
            self._deliver(received)

    def _take(self, message: Message) -> Received | None:
        """Return the job of a message, None for an error or a message that nobody here has published."""
        error = message.error()
        if error is not None:
            # Without a topic, the handler has never been published.
            if error.code() not in (KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART):
                self._warn(error.str())
            return None
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None:
            return None
        headers = dict(message.headers() or ())
        try:
            job_id, claim = int(message.key() or b""), int(headers.get("claim") or b"")
        except ValueError:
            _log.error("topic %s: message %s of partition %s is no job of Shardwheel", self.topic, offset, partition)
            self._unreadable(partition, offset)
            return None
        return Received(
            job_id=job_id,
            claim=claim,
            payload=message.value() or b"",
            left_out=headers.get("payload") == _LEFT_OUT,
            traceparent=_text(headers.get("traceparent")),
            partition=partition,
            offset=offset,
        )

    def _pause(self) -> None:
        if not self._paused:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True

    def _on_error(self, error: KafkaError) -> None:
        self._warn(error.str())

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        _log.info("topic %s: reading partitions %s", self.topic, [one.partition for one in partitions])
        # Those that are new would be read although the others are paused.
        self._paused = False

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._store_offsets()
        self._revoked([one.partition for one in partitions])

    def _store_offsets(self) -> None:
        with self._lock:
            offsets, self._offsets = self._offsets, {}
        for partition, offset in offsets.items():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(self.topic, partition, offset)])
            except KafkaException:
                # Somebody else reads the partition now; what was done with is refused there by its claim.
                pass

    def _warn(self, error: object) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _REPEAT_WARNING_S:
            self._warned_at = now
            _log.warning("topic %s: %s; trying again", self.topic, error)


def _text(value: str | bytes | None) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
