"""Settings of the Kafka clients of a node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from server.domain.errors import InvalidInput

# What a publisher relies on, and what a node has settings of its own for.
_FIXED: Final = frozenset(
    {"bootstrap.servers", "enable.idempotence", "acks", "delivery.report.only.error", "message.timeout.ms"}
)
# A message that no broker has taken after this time goes back to the database.
MESSAGE_TIMEOUT_MS: Final = 10_000


def read_properties(path: str) -> dict[str, str]:
    """Return further settings from a file with one `name=value` a line, `#` before comments; raises `InvalidInput`."""
    if not path:
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("kafka_config", path, f"cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not name:
            # Not shown: it may hold a password.
            raise InvalidInput("kafka_config", path, f"line {number} is not name=value")
        if name in _FIXED:
            raise InvalidInput("kafka_config", path, f"line {number}: {name} is set by the node and cannot be changed")
        found[name] = value
    return found


def producer_settings(servers: str, properties: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Return the settings of the producer: idempotent, and in batches."""
    return {
        # Jobs of one id go to the partition to which other clients would send them.
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        **admin_settings(servers, properties),
        "enable.idempotence": True,
        "acks": "all",
        "delivery.report.only.error": True,
        "message.timeout.ms": MESSAGE_TIMEOUT_MS,
    }


def admin_settings(servers: str, properties: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Return the settings of the client that looks for the broker and makes topics."""
    return {
        "client.id": "shardwheel",
        # Its complaints come as errors, and are told by the node's own log.
        "log_level": 2,
        "reconnect.backoff.max.ms": 1000,
        **properties,
        "bootstrap.servers": servers,
    }
