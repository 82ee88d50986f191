"""The part of a worker that talks to nodes: an event loop in a thread of its own, which runs no handler."""

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwheel.v1.worker_service_pb2 import HandlerRegistration, Hello, Welcome
from worker_sdk.async_client import AsyncClient
from worker_sdk.async_runner import AsyncRunner
from worker_sdk.attempt import Attempt
from worker_sdk.attempt_calls import AttemptCalls
from worker_sdk.backoff import Backoff
from worker_sdk.connection import Connection
from worker_sdk.credit import CreditBook
from worker_sdk.errors import ApiError, InvalidArgument, ShardwheelError
from worker_sdk.handler import HandlerDefinition
from worker_sdk.health import Health
from worker_sdk.inbox import Inbox, Runner
from worker_sdk.kafka_settings import KafkaSettings
from worker_sdk.ledger import Ledger
from worker_sdk.lifeline import Lifeline
from worker_sdk.links import Links
from worker_sdk.loop_watch import LoopWatch
from worker_sdk.middleware import Middleware
from worker_sdk.outbox import Outbox
from worker_sdk.outcomes import CancelReason, Interrupted
from worker_sdk.policies import retry_to_proto, timeouts_to_proto
from worker_sdk.schedules import NewSchedule
from worker_sdk.session import Session
from worker_sdk.thread_runner import ThreadRunner
from worker_sdk.topics import Topics
from worker_sdk.version import SDK

DEFAULT_MAX_RESULT_BYTES = 1 << 20
"""The hard limit, until a node has told its own."""

# The thread that talks with the nodes has hung up if it has not turned for so long.
_HUNG_S = 30.0
_TICK_S = 0.25
_GRANT_S = 1.0
_GRANT_DELAY_S = 0.01
# After the grace: time for cancelled handlers to stop, and for the last results to be acknowledged.
_STOP_S = 5.0
_ACK_S = 5.0
_GOODBYE_S = 1.0
_LEAVE_TOPICS_S = 3.0

_log = logging.getLogger("worker_sdk")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """What a worker is made of."""

    connection: Connection
    worker: str
    definitions: Sequence[HandlerDefinition]
    middleware: tuple[Middleware, ...]
    schedules: Sequence[NewSchedule]
    """Stored when the worker starts."""
    client: AsyncClient
    """Stores the schedules."""
    kafka: KafkaSettings | None = None
    """Where the topics of published handlers are; None: jobs come over the sessions only."""
    blocked_after_s: float
    """A handler's event loop that has not run for this long is warned about."""
    watchdog_limit_s: float
    """The watchdog process keeps the lease for this long without a sign of life; 0 for no watchdog."""


class Core:
    """One run of a worker, from `start` to `drain`."""

    def __init__(self, settings: CoreSettings, on_refusal: Callable[[ShardwheelError], None]) -> None:
        """`on_refusal` is called, in the core's loop, when nodes find fault with what the worker says of itself."""
        self._settings = settings
        self._on_refusal = on_refusal
        self.namespace = settings.connection.namespace
        self.worker = settings.worker
        self.incarnation = secrets.randbits(62) + 1
        self.max_result_bytes = DEFAULT_MAX_RESULT_BYTES
        self.connected = threading.Event()
        """Set from the first welcome on."""
        self._ledger = Ledger()
        self._credit = CreditBook({item.name: item.max_concurrency for item in settings.definitions})
        self._runners: dict[str, Runner] = {}
        self._watches: list[LoopWatch] = []
        self._lifeline = Lifeline(
            settings.connection, worker=self.worker, incarnation=self.incarnation, limit_s=settings.watchdog_limit_s
        )
        self._interval_s = 3.0
        self._grant_planned = False
        self._draining = False
        self._ticked_at = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._topics: Topics | None = None

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes with an open session. May be read from any thread."""
        return [session.node for session in self._links.live]

    def health(self) -> Health:
        """Say how this run does. May be called from any thread."""
        nodes = self.nodes if self.connected.is_set() else []
        silent_s = time.monotonic() - self._ticked_at
        return Health(
            alive=silent_s < _HUNG_S,
            ready=bool(nodes) and not self._draining,
            details={
                "worker": self.worker,
                "nodes": nodes,
                "running": len(self._ledger.running),
                "unacknowledged": len(self._ledger.finished),
                "draining": self._draining,
            },
        )

    @property
    def watchdog_process_id(self) -> int | None:
        """Id of the watchdog process, None if there is none."""
        return self._lifeline.process_id

    async def start(self) -> None:
        """Start the runners and begin to connect. To be called in the core's own event loop."""
        self._settled = asyncio.Event()
        self._inbox = Inbox(
            origin=self, introduce=self._introduce, ledger=self._ledger, credit=self._credit, runners=self._runners,
            on_welcome=self._on_welcome, on_settled=self._on_settled,
        )  # fmt: skip
        self._links = Links(self._settings.connection, self._inbox, self._inbox.on_session_end, self._on_refusal)
        self._outbox = Outbox(self._ledger, self._links, self._on_settled)
        self._inbox.connect(self._links, self._outbox)
        for definition in self._settings.definitions:
            kind = AsyncRunner if definition.is_async else ThreadRunner
            runner = kind(definition, self._settings.middleware, self._outbox.report)
            self._runners[definition.name] = runner
            if isinstance(runner, AsyncRunner):
                self._watches.append(LoopWatch(runner, patience_s=self._settings.blocked_after_s))
        if self._settings.kafka is not None:
            self._topics = self._open_topics(self._settings.kafka)
            self._topics.start()
        if self._settings.watchdog_limit_s > 0:
            self._lifeline.start()
        self._tasks.append(asyncio.create_task(self._tick(), name="tick"))
        if self._settings.schedules:
            self._tasks.append(asyncio.create_task(self._ensure_schedules(), name="schedules"))
        self._links.start()

    async def drain(self, grace_s: float) -> None:
        """Finish what runs, for at most `grace_s`; then stop it and give it back; say goodbye last.

        Heartbeats go on until the goodbye. What does not stop within 5 s of being told to is given back all the same:
        the process should exit soon after.
        """
        running = self._ledger.running
        self._draining = True
        self._inbox.drain()
        if self._topics is not None:
            self._topics.drain()
        for runner in self._runners.values():
            runner.withdraw(CancelReason.SHUTDOWN)
        if not await self._until(lambda: not running, grace_s):
            _log.warning("attempts not ended within the grace, stopped and given back: %s", len(running))
            for attempt in list(running.values()):
                self._inbox.stop_attempt(attempt, CancelReason.SHUTDOWN)
            await self._until(lambda: not running, _STOP_S)
            for attempt in list(running.values()):
                _log.warning("job %s (%s) does not stop", attempt.job_id, attempt.definition.name)
                self._outbox.report(attempt, Interrupted())
            self._outbox.flush()
        if not await self._until(lambda: not self._ledger.finished, _ACK_S):
            _log.warning("results that no node has acknowledged: %s", len(self._ledger.finished))
        await self.close("worker stops")

    async def close(self, reason: str) -> None:
        """Say goodbye and end everything but the runners."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._topics is not None:
            await self._topics.close(_LEAVE_TOPICS_S)
        # Before the goodbye, so that nothing renews the lease after it.
        self._lifeline.stop()
        self._links.refrain()
        for session in self._links.live:
            session.send_goodbye(reason)
        await self._until(lambda: not self._links.live, _GOODBYE_S)
        await self._links.close()
        await self._settings.client.close()

    def stop_runners(self, timeout_s: float) -> bool:
        """End the handlers' loops and threads; return whether all ended. To be called from another thread."""
        deadline = time.monotonic() + timeout_s
        ended = [runner.stop(max(0.1, deadline - time.monotonic())) for runner in self._runners.values()]
        return all(ended)

    def record_progress(self, attempt: Attempt, data: bytes) -> None:
        """Keep the attempt's latest progress. Called from any thread."""
        self._outbox.record_progress(attempt, data)

    def _open_topics(self, kafka: KafkaSettings) -> Topics:
        calls = AttemptCalls(self._settings.connection, self._links, worker=self.worker, incarnation=self.incarnation)
        return Topics(
            settings=kafka, origin=self, definitions=self._settings.definitions, ledger=self._ledger,
            credit=self._credit, runners=self._runners, calls=calls, inbox=self._inbox, outbox=self._outbox,
        )  # fmt: skip

    def _introduce(self) -> Hello:
        hello = Hello(worker=self.worker, incarnation=self.incarnation, namespace=self.namespace, sdk=SDK)
        for definition in self._settings.definitions:
            registration = HandlerRegistration(handler=definition.name, max_concurrency=definition.max_concurrency)
            if definition.retry is not None:
                registration.retry.CopyFrom(retry_to_proto(definition.retry))
            if definition.timeouts is not None:
                registration.timeouts.CopyFrom(timeouts_to_proto(definition.timeouts))
            hello.handlers.append(registration)
        return hello

    def _on_welcome(self, session: Session, welcome: Welcome) -> None:
        if welcome.max_result_bytes > 0:
            self.max_result_bytes = welcome.max_result_bytes
        self._interval_s = session.interval_s
        self._lifeline.order(self._links.addresses, self._interval_s)
        self.connected.set()

    def _on_settled(self) -> None:
        self._settled.set()
        if self._topics is not None:
            self._topics.look()
        if not self._grant_planned and self._inbox.slots_may_move():
            # Many attempts end in a short time; a little later is soon enough for a slot to move.
            self._grant_planned = True
            asyncio.get_running_loop().call_later(_GRANT_DELAY_S, self._grant)

    def _grant(self) -> None:
        self._grant_planned = False
        self._inbox.grant()

    async def _tick(self) -> None:
        """Do what has to be done again and again."""
        beat_at = grant_at = 0.0
        while True:
            try:
                now = self._ticked_at = time.monotonic()
                self._inbox.stop_overdue()
                if self._topics is not None:
                    self._topics.look()
                for watch in self._watches:
                    watch.look()
                if now - beat_at >= self._interval_s / 3:
                    beat_at = now
                    self._lifeline.beat()
                if now - grant_at >= _GRANT_S:
                    grant_at = now
                    self._inbox.grant(spread=True)
                    self._inbox.retire_idle()
                    self._outbox.send_waiting()
                    if self.connected.is_set():
                        self._lifeline.order(self._links.addresses, self._interval_s)
            except Exception:
                _log.exception("housekeeping failed, going on")
            await asyncio.sleep(min(_TICK_S, self._interval_s / 4))

    async def _ensure_schedules(self) -> None:
        """Store the schedules that are defined in code; try until a node has done so."""
        backoff = Backoff()
        while True:
            try:
                for item in await self._settings.client.ensure_schedules(self._settings.schedules):
                    _log.info("schedule %r %s, next firing %s", item.name, item.change, item.next_fire_at)
                return
            except InvalidArgument as error:
                self._on_refusal(error)
                return
            except ApiError as error:
                level = logging.WARNING if backoff.failures == 0 else logging.DEBUG
                _log.log(level, "schedules not stored yet: %s; trying again", error)
            await asyncio.sleep(backoff.next_delay_s())

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition that depends on attempts, results or sessions is true; return whether it is."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            self._settled.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._settled.wait()
            except TimeoutError:
                return condition()
        return True
