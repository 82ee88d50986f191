"""How a worker reaches Kafka."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker_sdk.errors import ConfigurationError

TOPIC_PREFIX = "shardwheel"
MAX_TOPIC_LENGTH = 249

# What the commit of offsets after the acknowledged finish rests on.
_FIXED = ("bootstrap.servers", "group.id", "enable.auto.commit", "enable.auto.offset.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Brokers, and further settings of librdkafka, for example those of TLS and SASL."""

    servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in self.properties:
            if name in _FIXED:
                raise ConfigurationError(f"kafka_config: {name} is set by the worker and cannot be changed")

    def consumer(self, group: str) -> dict[str, str | int | float | bool]:
        """Return the settings of a consumer."""
        return {
            "client.id": "shardwheel-worker",
            # Its complaints come as errors, of which the reader warns.
            "log_level": 2,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1000,
            # A topic is made when its handler is first published: consumers find it within this time.
            "topic.metadata.refresh.interval.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            **self.properties,
            "bootstrap.servers": self.servers,
            "group.id": group,
            # Offsets are committed as far as they were stored, and stored when the job's end is acknowledged.
            "enable.auto.commit": True,
            "enable.auto.offset.store": False,
        }


def topic_of(namespace: str, handler: str) -> str | None:
    """Return the topic of a handler's jobs, which is also its consumers' group; None if the name allows for none."""
    topic = f"{TOPIC_PREFIX}.{namespace}.{handler}"
    return topic if "/" not in topic and len(topic) <= MAX_TOPIC_LENGTH else None


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings in a file with one `name=value` a line. Raises `ConfigurationError`."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"kafka_config: cannot read {str(path)!r}: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not name:
            # Not shown: it may hold a password.
            raise ConfigurationError(f"kafka_config: line {number} of {str(path)!r} is not name=value")
        found[name] = value
    return found
