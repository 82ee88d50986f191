"""A worker: handlers, and what runs them."""

import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast

from worker_sdk import tracing
from worker_sdk.async_client import AsyncClient
from worker_sdk.client import Client
from worker_sdk.codec import Codec, JsonCodec
from worker_sdk.connection import Connection, ConnectionOptions
from worker_sdk.core import Core, CoreSettings
from worker_sdk.durations import Span, as_seconds
from worker_sdk.errors import ConfigurationError, ShardwheelError
from worker_sdk.execution_log import EXECUTION_LOG_VARIABLE, ExecutionLog
from worker_sdk.handler import Handler, HandlerDefinition, define_handler
from worker_sdk.health import HEALTH_VARIABLE, HealthServer
from worker_sdk.kafka_settings import KafkaSettings
from worker_sdk.loop_thread import LoopThread
from worker_sdk.middleware import Middleware
from worker_sdk.policies import RetryPolicy, Timeouts
from worker_sdk.schedules import NewSchedule, ScheduleOptions
from worker_sdk.tls import PathText, Tls

Payload = TypeVar("Payload")
Rest = ParamSpec("Rest")
Return = TypeVar("Return")

DEFAULT_MAX_CONCURRENCY = 10
DEFAULT_GRACE_S = 30.0
DEFAULT_BLOCKED_AFTER_S = 1.0
DEFAULT_WATCHDOG_S = 300.0
_STOP_RUNNERS_S = 2.0

_log = logging.getLogger("worker_sdk")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Scheduled = TypeVar("Scheduled", bound=_Named)


class Worker:
    """Runs jobs by calling handlers.

    ::

        worker = Worker()

        @worker.handler("email.send", max_concurrency=20, timeout=30)
        async def send_email(email: Email, ctx: Context) -> None: ...

        if __name__ == "__main__":
            worker.run()

    Async handlers run in an event loop per handler, sync handlers in a pool of threads per handler, and the
    conversation with the nodes in a thread apart: whatever blocks a handler delays neither other handlers nor
    heartbeats. Importing a module that defines a worker connects to nothing.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str | None = None,
        name: str | None = None,
        codec: Codec | None = None,
        middleware: Sequence[Middleware] = (),
        grace: Span = DEFAULT_GRACE_S,
        blocked_after: Span = DEFAULT_BLOCKED_AFTER_S,
        watchdog: Span = DEFAULT_WATCHDOG_S,
        health_listen: str | None = None,
        ca: PathText | None = None,
        tls: Tls | None = None,
        token: str | None = None,
        token_file: PathText | None = None,
        kafka: str | None = None,
        kafka_config: Mapping[str, str] | None = None,
    ) -> None:
        """Define a worker; nothing is connected yet.

        `address` is `host:port` of any node, or several with commas between; left out, `SHARDWHEEL_ADDRESS` or
        localhost:7400. `namespace`: left out, `SHARDWHEEL_NAMESPACE` or "default". `name` is unique among live workers
        of the namespace; left out, host name and process id. `grace`: how long `run` lets handlers finish after a
        SIGTERM. `blocked_after`: a handler's event loop that is blocked for longer is warned about. `watchdog`: for how
        long a watchdog process keeps the lease while native code holds the interpreter's lock; 0 for no such process.
        `health_listen` is HOST:PORT, or :PORT for all interfaces, at which `/healthz` and `/readyz` are answered from
        start to stop; left out, `SHARDWHEEL_HEALTH_LISTEN`, or nowhere.
        `kafka`: brokers, `host:port,host:port`, from whose topics the jobs of published handlers are taken;
        `kafka_config`: further settings of librdkafka, for example those of TLS and SASL.
        `ca`, `tls`, `token` and `token_file` are those of `AsyncClient`; the token needs the right to work.
        """
        self._options = ConnectionOptions(
            address=address, namespace=namespace, ca=ca, tls=tls, token=token, token_file=token_file
        )
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._codec = codec or JsonCodec()
        self.middleware: list[Middleware] = list(middleware)
        """Runs around every execution, the first one outermost. Changes count from the next start on."""
        self._grace_s = as_seconds(grace, "grace")
        self._blocked_after_s = as_seconds(blocked_after, "blocked_after")
        self._watchdog_s = as_seconds(watchdog, "watchdog")
        self._health_listen = health_listen
        self._health: HealthServer | None = None
        self._kafka = kafka
        self._kafka_config = dict(kafka_config or {})
        self._definitions: dict[str, HandlerDefinition] = {}
        self._schedules: dict[str, NewSchedule] = {}
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._core: Core | None = None
        self._refusal: ShardwheelError | None = None
        # What makes `run` stop. Unlike an event, it may be used in a signal handler.
        self._stop_calls: queue.SimpleQueue[str] = queue.SimpleQueue()

    def configure(
        self, *, name: str | None = None, grace: Span | None = None, health_listen: str | None = None,
        kafka: str | None = None, kafka_config: Mapping[str, str] | None = None, **options: Unpack[ConnectionOptions],
    ) -> None:  # fmt: skip
        """Change settings before the start; what is None stays as it is. `options` are those of the constructor."""
        given: dict[str, object] = {option: value for option, value in options.items() if value is not None}
        # One way to say it takes the place of the other.
        replaced = {"tls": {"ca": None}, "token_file": {"token": None}}
        given = {**{name: None for option in given for name in replaced.get(option, ())}, **given}
        self._options = cast("ConnectionOptions", {**self._options, **given})
        self.name = name or self.name
        self._health_listen = health_listen or self._health_listen
        self._kafka = kafka or self._kafka
        if kafka_config is not None:
            self._kafka_config = dict(kafka_config)
        if grace is not None:
            self._grace_s = as_seconds(grace, "grace")

    @property
    def connection(self) -> Connection:
        """How the cluster is reached. Raises `ConfigurationError` for malformed settings."""
        return Connection.resolve(**self._options)

    @property
    def client(self) -> Client:
        """A client with the worker's settings, which `Handler.submit` uses. It connects with its first call."""
        with self._lock:
            if self._client is None:
                self._client = Client(codec=self._codec, **self._options)
            return self._client

    @property
    def handlers(self) -> Sequence[HandlerDefinition]:
        """The handlers, in the order of their definition."""
        return list(self._definitions.values())

    @property
    def schedules(self) -> Sequence[NewSchedule]:
        """The schedules defined with `schedule`, in the order of their definition."""
        return list(self._schedules.values())

    def handler(
        self,
        name: str,
        *,
        max_concurrency: int = DEFAULT_MAX_CONCURRENCY,
        timeout: Span | None = None,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[Callable[Concatenate[Payload, Rest], Return]], Handler[Payload, Rest, Return]]:
        """Make a function of (payload) or (payload, context), async or sync, the handler of jobs of that name.

        At most `max_concurrency` attempts run at a time in this worker. `timeout` limits each attempt; `timeouts` has
        all limits. Limits and `retry` are defaults for jobs that do not say otherwise. The payload is decoded to the
        annotated type. Raises `ConfigurationError` if the function cannot be a handler or the name is taken.
        """
        if timeout is not None:
            if timeouts is not None:
                raise ConfigurationError(f"handler {name!r}: give timeout or timeouts, not both")
            timeouts = Timeouts(attempt=timeout)

        def register(function: Callable[Concatenate[Payload, Rest], Return]) -> Handler[Payload, Rest, Return]:
            if name in self._definitions:
                raise ConfigurationError(f"handler {name!r} is defined twice")
            definition = define_handler(
                function, name=name, codec=self._codec, max_concurrency=max_concurrency, retry=retry, timeouts=timeouts
            )
            self._definitions[name] = definition
            return Handler(function, definition, lambda: self.client)

        return register

    def schedule(
        self,
        *,
        cron: str = "",
        every: Span | None = None,
        once_at: datetime | None = None,
        name: str = "",
        time_zone: str = "",
        payload: object = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[Scheduled], Scheduled]:
        """Have a handler's jobs made by a schedule, which is stored when the worker starts. Goes above `handler`.

        Stored schedules are updated by name; an unchanged one keeps its next firing. `name` is the handler's by
        default. A schedule that is taken out of the code stays stored: delete it, or store `Worker.schedules` with
        `ensure_schedules(…, prune_prefix=…)`. Raises `ConfigurationError` if the name is taken here.
        """

        def register(handler: Scheduled) -> Scheduled:
            if not isinstance(handler, Handler):
                raise ConfigurationError("put @worker.schedule(…) above @worker.handler(…), not below it")
            schedule = NewSchedule(
                name=name or handler.name, handler=handler.name, payload=payload, cron=cron, every=every,
                once_at=once_at, time_zone=time_zone, **options,
            )  # fmt: skip
            if schedule.name in self._schedules:
                raise ConfigurationError(f"schedule {schedule.name!r} is defined twice; give each one a name")
            self._schedules[schedule.name] = schedule
            return handler

        return register

    def run(self) -> bool:
        """Run until SIGTERM, SIGINT or `request_stop`; then drain, and return.

        While draining, no new job is taken; running ones have the grace to finish, then they are told to stop and are
        given back without burning a try. A second signal exits at once. Returns False if a handler does not stop: its
        attempt has been given back, so the process should exit soon. Raises `InvalidArgument` if the cluster finds
        fault with what the worker says of itself, and `ConfigurationError` for malformed settings.
        """
        with self._signals():
            self.start()
            try:
                reason = self._stop_calls.get()
                _log.info("worker %s stops: %s", self.name, reason)
            finally:
                ended = self.stop()
        if self._refusal is not None:
            raise self._refusal
        return ended

    def request_stop(self, reason: str = "asked to stop") -> None:
        """Make `run` drain and return. May be called from any thread and from a signal handler."""
        self._stop_calls.put(reason)

    def start(self) -> None:
        """Start to run jobs, in threads of the worker's own, and return. For programs that do more than run a worker.

        Raises `ConfigurationError` for malformed settings, and if there is no handler.
        """
        if self._thread is not None:
            raise RuntimeError(f"worker {self.name!r} runs already")
        if not self._definitions:
            raise ConfigurationError(f"worker {self.name!r} has no handler; define one with @worker.handler(…)")
        middleware = tuple(self.middleware)
        log_file = os.environ.get(EXECUTION_LOG_VARIABLE)
        if log_file:
            middleware = (ExecutionLog(log_file), *middleware)
        if tracing.in_use():
            middleware = (tracing.around_attempt, *middleware)
        client = AsyncClient(codec=self._codec, **self._options)
        settings = CoreSettings(
            connection=self.connection,
            worker=self.name,
            definitions=self.handlers,
            middleware=middleware,
            schedules=self.schedules,
            client=client,
            kafka=KafkaSettings(servers=self._kafka, properties=self._kafka_config) if self._kafka else None,
            blocked_after_s=self._blocked_after_s,
            watchdog_limit_s=self._watchdog_s,
        )
        self._refusal, self._stop_calls = None, queue.SimpleQueue()
        core = Core(settings, self._refused)
        listen = self._health_listen or os.environ.get(HEALTH_VARIABLE)
        health = HealthServer(listen, core.health) if listen else None
        thread = LoopThread("shardwheel-io")
        try:
            thread.call(core.start())
        except BaseException:
            thread.stop()
            if health is not None:
                health.stop()
            raise
        self._core, self._thread, self._health = core, thread, health

    def wait_connected(self, timeout: float | None = None) -> bool:
        """Block until a node has welcomed the worker, at most `timeout` seconds; return whether one has."""
        return self._core is not None and self._core.connected.wait(timeout)

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes with an open session: for a health check. Empty while the worker is cut off."""
        return self._core.nodes if self._core is not None else []

    @property
    def health_port(self) -> int | None:
        """The port at which probes are answered; None if there is none."""
        return self._health.port if self._health is not None else None

    @property
    def watchdog_process_id(self) -> int | None:
        """Id of the watchdog process; None if there is none."""
        return self._core.watchdog_process_id if self._core is not None else None

    def stop(self, grace: Span | None = None) -> bool:
        """Drain, as after SIGTERM, and end the worker's threads.

        Returns False if a handler does not stop: its attempt has been given back, so the process should exit soon.
        """
        thread, self._thread = self._thread, None
        core = self._core
        if thread is None or core is None:
            return True
        try:
            thread.call(core.drain(self._grace_s if grace is None else as_seconds(grace, "grace")))
        finally:
            ended = core.stop_runners(_STOP_RUNNERS_S)
            thread.stop()
            health, self._health = self._health, None
            if health is not None:
                health.stop()
            with self._lock:
                client, self._client = self._client, None
            if client is not None:
                client.close()
        return ended

    def _refused(self, error: ShardwheelError) -> None:
        self._refusal = error
        _log.error("the cluster refuses this worker: %s", error)
        self.request_stop("refused by the cluster")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, if this is the main thread; others cannot have signal handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        received: list[int] = []

        def on_signal(number: int, frame: FrameType | None) -> None:
            if received:
                os._exit(128 + number)
            received.append(number)
            self.request_stop(f"{signal.Signals(number).name} received; again to exit at once")

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
