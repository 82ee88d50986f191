"""Spans of a node, sent to an OpenTelemetry collector: the storing of a job, and each hand-over to a worker.

A job's trace is that of whoever submitted it, stored with the job. A hand-over is a child of it, and its context goes
on to the worker, so that the worker's span of the attempt is a child of the hand-over. A job without a trace begins one
with each hand-over, if the sampler wants that. Jobs whose trace is not sampled cost next to nothing.

Spans carry names and numbers only. They are sent by a thread of the exporter; while the collector is away they are
dropped, and nothing waits for it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from server.domain.errors import InvalidInput
from server.domain.job import ClaimedJob, NewJob, Submitted
from server.domain.sharding import shard_of_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_NAME: Final = "shardwheel"
# The exporter gives up a batch after so long.
EXPORT_TIMEOUT_S: Final = 10
_CLOSE_S: Final = 3.0


class NodeTracing:
    """Makes the spans of one node. `handler_name` returns the name of a handler by its id."""

    def __init__(self, provider: "TracerProvider", node: str, handler_name: Callable[[int], str]) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._node = node
        self._handler_name = handler_name
        self._tracer = provider.get_tracer(_NAME)
        self._propagator = TraceContextTextMapPropagator()
        self._nothing = Context()
        self._kinds = {"store": SpanKind.SERVER, "dispatch": SpanKind.PRODUCER}
        self._in_context = set_span_in_context

    def stored(self, jobs: Sequence[tuple[NewJob, Submitted]], began_ns: int) -> None:
        """See `server.api.ports.SubmitTrace`. Only jobs of clients that trace have a span."""
        for job, submitted in jobs:
            if job.traceparent is None or not _sampled(job.traceparent):
                continue
            attributes = self._attributes("store", job.handler_id, submitted.job_id)
            attributes["shardwheel.created"] = submitted.created
            span = self._start("store", job.handler_id, job.traceparent, attributes, began_ns)
            span.end()

    def dispatched(self, jobs: Sequence[ClaimedJob], claimed_s: float) -> None:
        """See `server.engine.ports.DispatchTrace`. The jobs' trace context becomes that of their span."""
        began_ns = time.time_ns() - int(claimed_s * 1e9)
        for job in jobs:
            if job.traceparent is not None and not _sampled(job.traceparent):
                continue
            attributes = self._attributes("dispatch", job.handler_id, job.job_id) | {
                "shardwheel.attempt": job.attempt,
                "shardwheel.claim": job.claim,
                "shardwheel.epoch": job.epoch,
                "shardwheel.lateness_seconds": _seconds_between(job.due_at, job.started_at),
            }
            span = self._start("dispatch", job.handler_id, job.traceparent, attributes, began_ns)
            if span.is_recording():
                job.traceparent = self._context_of(span)
            span.end()

    async def close(self) -> None:
        """Send what is left, for a short time."""
        # It may hang on a collector that is away, and the end of the process must not wait for it.
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _CLOSE_S)

    def _start(
        self, operation: str, handler_id: int, traceparent: str | None, attributes: dict[str, Any], began_ns: int
    ) -> Any:
        parent = self._nothing
        if traceparent is not None:
            parent = self._propagator.extract({"traceparent": traceparent}, parent)
        name = f"{operation} {self._handler_name(handler_id)}"
        return self._tracer.start_span(name, parent, self._kinds[operation], attributes, start_time=began_ns)

    def _attributes(self, operation: str, handler_id: int, job_id: int) -> dict[str, Any]:
        return {
            "messaging.system": _NAME,
            "messaging.operation.name": operation,
            "messaging.destination.name": self._handler_name(handler_id),
            "messaging.message.id": str(job_id),
            "shardwheel.shard": shard_of_id(job_id),
            "shardwheel.node": self._node,
        }

    def _context_of(self, span: Any) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._in_context(span, self._nothing))
        return carrier["traceparent"]


def open_tracing(endpoint: str, *, node: str, version: str, handler_name: Callable[[int], str]) -> NodeTracing:
    """Return tracing that sends spans to a collector at `endpoint` by OTLP over gRPC.

    Sampler, headers, certificates and further attributes are taken from the variables that OpenTelemetry defines
    (`OTEL_TRACES_SAMPLER` and so on). Raises `InvalidInput` if the packages of the extra "otel" are missing.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        reason = "needs the packages of an extra: pip install 'shardwheel[otel]'"
        raise InvalidInput("otlp_endpoint", endpoint, reason) from error
    about = {"service.name": _NAME, "service.instance.id": node, "service.version": version}
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)))
    return NodeTracing(provider, node, handler_name)


def _sampled(traceparent: str) -> bool:
    """Whether the lowest of the flags is set, which are the last two digits of a trace context of version 00."""
    return int(traceparent[-1], 16) & 1 == 1


def _seconds_between(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()
