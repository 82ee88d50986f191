"""What a worker with Kafka has beside its sessions: attempts that start and finish by calls."""

from collections.abc import Mapping, Sequence

from worker_sdk.attempt import Origin
from worker_sdk.attempt_calls import AttemptCalls
from worker_sdk.credit import CreditBook
from worker_sdk.errors import ConfigurationError
from worker_sdk.handler import HandlerDefinition
from worker_sdk.inbox import Inbox, Runner
from worker_sdk.kafka_settings import KafkaSettings
from worker_sdk.ledger import Ledger
from worker_sdk.outbox import Outbox


class Topics:
    """Reads the topics of a worker's handlers. Used in the event loop of the sessions."""

    def __init__(
        self, *, settings: KafkaSettings, origin: Origin, definitions: Sequence[HandlerDefinition], ledger: Ledger,
        credit: CreditBook, runners: Mapping[str, Runner], calls: AttemptCalls, inbox: Inbox, outbox: Outbox,
    ) -> None:  # fmt: skip
        """Raises `ConfigurationError` for unusable settings, and if the extra kafka is not installed."""
        try:
            # An extra: only workers with Kafka need the package.
            from worker_sdk.kafka_finisher import KafkaFinisher
            from worker_sdk.kafka_intake import KafkaIntake
        except ImportError as error:
            raise ConfigurationError(
                f"kafka: needs the package confluent-kafka ({error}): pip install 'shardwheel-sdk[kafka]'"
            ) from error
        self._intake = KafkaIntake(
            settings=settings, origin=origin, definitions=definitions, ledger=ledger, credit=credit, runners=runners,
            calls=calls, inbox=inbox, outbox=outbox,
        )  # fmt: skip
        self._finisher = KafkaFinisher(calls, self._intake.on_acks, self._intake.dropped)
        outbox.finish_through(self._finisher)

    def start(self) -> None:
        """Begin to read."""
        self._finisher.start()
        self._intake.start()

    def look(self) -> None:
        """Start what waits, as far as there are slots."""
        self._intake.look()

    def drain(self) -> None:
        """Start nothing more; what was started is finished."""
        self._intake.drain()

    async def close(self, timeout_s: float) -> None:
        """Leave the topics; what is not finished by now is given to other workers."""
        await self._intake.close(timeout_s)
        await self._finisher.close()
