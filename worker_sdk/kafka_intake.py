"""Jobs from topics: reads as many messages as there are free slots, starts their attempts, and commits offsets.

An attempt is entered into the ledger before it is started, so that the worker can answer for it from the first moment.
Slots are shared with the nodes' streams: what comes from topics has an account like a stream's, which asks for slots
while messages are there. An offset is committed when every message before it is done with: its attempt was refused, or
its end is acknowledged.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from shardwheel.v1.worker_service_pb2 import Assignment, AttemptRef, AttemptToStart, ResultAck
from worker_sdk.attempt import Attempt, Origin
from worker_sdk.attempt_calls import AttemptCalls
from worker_sdk.credit import CreditBook
from worker_sdk.handler import HandlerDefinition
from worker_sdk.inbox import Inbox, Runner
from worker_sdk.kafka_finisher import STREAM
from worker_sdk.kafka_reader import KafkaReader, Received
from worker_sdk.kafka_settings import KafkaSettings, topic_of
from worker_sdk.ledger import Ledger
from worker_sdk.offsets import OffsetBook
from worker_sdk.outbox import Outbox
from worker_sdk.outcomes import Interrupted

# Attempts that one call starts, and among them those whose payload has to come with the answer.
_BATCH = 500
_BATCH_PAYLOADS = 8
# A handler of whose topic messages came so lately is about to get more.
_BUSY_S = 1.0

_log = logging.getLogger("worker_sdk")

Key = tuple[int, int]
"""Job id and claim."""


@dataclass(slots=True, kw_only=True)
class _Topic:
    """What is known of one handler's topic."""

    definition: HandlerDefinition
    reader: KafkaReader
    waiting: deque[Received] = field(default_factory=deque)
    """Read, and not started yet."""
    offsets: OffsetBook = field(default_factory=OffsetBook)
    positions: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    """Partitions and offsets of the messages of attempts that are not done with."""
    allowed: int = 0
    """Messages that the reader may deliver and has not delivered."""
    busy_until: float = 0.0


class KafkaIntake:
    """See the module. Used in the event loop of the sessions."""

    def __init__(
        self, *, settings: KafkaSettings, origin: Origin, definitions: Sequence[HandlerDefinition], ledger: Ledger,
        credit: CreditBook, runners: Mapping[str, Runner], calls: AttemptCalls, inbox: Inbox, outbox: Outbox,
    ) -> None:  # fmt: skip
        """Read the topics of all handlers that can have one. Raises `ConfigurationError` for unusable settings."""
        self._origin = origin
        self._ledger = ledger
        self._credit = credit
        self._runners = runners
        self._calls = calls
        self._inbox = inbox
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._starts: set[asyncio.Task[None]] = set()
        self._draining = False
        self._topics: dict[str, _Topic] = {}
        for definition in definitions:
            topic = topic_of(origin.namespace, definition.name)
            if topic is not None:
                self._topics[definition.name] = _Topic(
                    definition=definition, reader=self._reader(settings, topic, definition.name)
                )

    def start(self) -> None:
        """Begin to read."""
        self._inbox.share_with_topics(STREAM, self.look)
        for topic in self._topics.values():
            topic.reader.start()
        self.look()

    def look(self) -> None:
        """Start what waits, as far as there are slots, and say how many more messages may come."""
        now = time.monotonic()
        demand = {}
        for name, topic in self._topics.items():
            self._start_waiting(name, topic)
            if topic.waiting or now < topic.busy_until:
                demand[name] = topic.definition.max_concurrency
            # One more than there are slots: it tells that there are messages at all.
            more = self._free(name) + 1 - len(topic.waiting) - topic.allowed
            if more > 0 and not self._draining:
                topic.allowed += more
                topic.reader.allow(more)
        self._credit.set_demand(STREAM, demand)

    def on_acks(self, acks: Sequence[ResultAck]) -> None:
        """The ends of attempts are stored, or refused: their messages are done with."""
        self._inbox.on_acks(acks)
        for ack in acks:
            self._done((ack.attempt.job_id, ack.attempt.claim))
        self.look()

    def dropped(self, attempt: Attempt) -> None:
        """An attempt that was superseded has stopped."""
        self._done(attempt.key)

    def drain(self) -> None:
        """Start nothing more; what was read and not started is left to other consumers."""
        self._draining = True
        for topic in self._topics.values():
            topic.waiting.clear()

    async def close(self, timeout_s: float) -> None:
        """Leave the groups, after a commit of what is done with."""
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        for topic in self._topics.values():
            topic.reader.stop()
        deadline = time.monotonic() + timeout_s
        for topic in self._topics.values():
            await asyncio.to_thread(topic.reader.join, max(0.1, deadline - time.monotonic()))

    def _reader(self, settings: KafkaSettings, topic: str, handler: str) -> KafkaReader:
        """Make a reader that tells this object in its event loop."""

        def later(method: Callable[..., None], *arguments: object) -> None:
            try:
                self._loop.call_soon_threadsafe(partial(method, handler, *arguments))
            except RuntimeError:
                # The worker is gone: what was read comes to another one.
                pass

        return KafkaReader(
            settings,
            topic,
            partial(later, self._delivered),
            partial(later, self._unreadable),
            partial(later, self._revoked),
        )

    def _delivered(self, handler: str, messages: Sequence[Received]) -> None:
        topic = self._topics[handler]
        topic.allowed -= len(messages)
        topic.busy_until = time.monotonic() + _BUSY_S
        if self._draining:
            return
        for message in messages:
            topic.offsets.take(message.partition, message.offset)
            topic.waiting.append(message)
        self.look()
        if topic.waiting:
            self._inbox.grant()

    def _unreadable(self, handler: str, partition: int, offset: int) -> None:
        topic = self._topics[handler]
        topic.offsets.take(partition, offset)
        self._commit(topic, partition, offset)

    def _revoked(self, handler: str, partitions: Sequence[int]) -> None:
        topic = self._topics[handler]
        for partition in partitions:
            topic.offsets.forget(partition)
        topic.waiting = deque(one for one in topic.waiting if one.partition not in partitions)

    def _free(self, handler: str) -> int:
        return max(0, self._credit.granted(STREAM, handler) - self._ledger.used[STREAM, handler])

    def _start_waiting(self, handler: str, topic: _Topic) -> None:
        while topic.waiting and not self._draining and (free := self._free(handler)) > 0:
            batch: list[tuple[Attempt, Received]] = []
            payloads = 0
            while topic.waiting and len(batch) < min(free, _BATCH):
                payloads += topic.waiting[0].left_out
                if payloads > _BATCH_PAYLOADS:
                    break
                message = topic.waiting.popleft()
                attempt = self._enter(topic, message)
                if attempt is not None:
                    batch.append((attempt, message))
            if batch:
                task = asyncio.create_task(self._start_batch(handler, batch), name=f"start {handler}")
                self._starts.add(task)
                task.add_done_callback(self._starts.discard)

    def _enter(self, topic: _Topic, message: Received) -> Attempt | None:
        """Enter an attempt into the ledger; None if its message needs no start."""
        key = message.job_id, message.claim
        position = message.partition, message.offset
        if key in topic.positions:
            # Another message of the same publication: done with when the first one is.
            topic.positions[key].append(position)
            return None
        older = self._ledger.running.get(message.job_id)
        outdated = older is not None and older.claim > message.claim
        if outdated or self._ledger.holds(*key) or self._ledger.disclaimed(*key):
            self._commit(topic, *position)
            return None
        if older is not None:
            # A later claim exists, so the older one is not this worker's any more.
            self._inbox.supersede(message.job_id, older.claim)
        assignment = Assignment(
            job_id=message.job_id, claim=message.claim, handler=topic.definition.name, payload=message.payload
        )
        attempt = Attempt(assignment, topic.definition, self._origin, stream=STREAM)
        self._ledger.add(attempt)
        topic.positions.setdefault(key, []).append(position)
        return attempt

    async def _start_batch(self, handler: str, batch: Sequence[tuple[Attempt, Received]]) -> None:
        """Start attempts and run those that are this worker's now."""
        wanted = [
            AttemptToStart(
                attempt=AttemptRef(job_id=message.job_id, claim=message.claim), with_payload=message.left_out
            )
            for _, message in batch
        ]
        try:
            started = {(one.job_id, one.claim): one for one in await self._calls.start(wanted)}
        except BaseException:
            # Whether they are this worker's or not, the audit finds that it does not hold them.
            for attempt, _ in batch:
                self._ledger.remove(attempt)
            raise
        to_run = []
        for attempt, message in batch:
            assignment = started.get(attempt.key)
            if assignment is None or self._ledger.running.get(attempt.job_id) is not attempt:
                self._ledger.remove(attempt)
                self._done(attempt.key)
                continue
            if not message.left_out:
                assignment.payload = message.payload
            if message.traceparent:
                # The publication's own, whose parent is what the database holds.
                assignment.traceparent = message.traceparent
            attempt.assign(assignment)
            if self._draining:
                self._outbox.report(attempt, Interrupted())
            else:
                to_run.append(attempt)
        self._runners[handler].submit(to_run)
        if len(to_run) < len(batch):
            self.look()

    def _done(self, key: Key) -> None:
        """Note that the messages of an attempt are done with."""
        for topic in self._topics.values():
            for position in topic.positions.pop(key, ()):
                self._commit(topic, *position)

    def _commit(self, topic: _Topic, partition: int, offset: int) -> None:
        commit = topic.offsets.finish(partition, offset)
        if commit is not None:
            topic.reader.store(partition, commit)
