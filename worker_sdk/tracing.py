"""OpenTelemetry spans around submits and attempts, in programs that use OpenTelemetry.

Off until the program itself has imported `opentelemetry.trace`, as every program does that exports spans; so this costs
others nothing, and the SDK needs no package of it. The context of the span around a submit is stored with the job, and
is the parent of the spans of all its attempts, however many there are and wherever they run.

A span carries names and numbers, never payloads, results, or texts of errors, which may quote them.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from shardwheel.v1.job_pb2 import JobSpec
from worker_sdk.context import Context
from worker_sdk.outcomes import Cancelled, Snooze
from worker_sdk.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_NAME = "shardwheel"
_OFF = nullcontext()


def in_use() -> bool:
    """Whether the program uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


def submitting(specs: Sequence[JobSpec]) -> AbstractContextManager[None]:
    """Return what goes around the call that stores these jobs: a span, whose context the jobs get that have none."""
    return _submitting(specs) if in_use() and specs else _OFF


def carry(spec: JobSpec) -> None:
    """Give a job without a trace context that of the span around the caller, if there is one."""
    if in_use() and not spec.traceparent:
        spec.traceparent = _current()


@contextmanager
def around_attempt(context: Context) -> Iterator[None]:
    """A middleware: the span of an attempt, a child of the span in which the job was submitted."""
    from opentelemetry.context import Context as NoContext
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({"traceparent": context.traceparent}, NoContext())
    attributes: dict[str, str | int] = {
        "messaging.system": _NAME,
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": context.handler,
        "messaging.message.id": str(context.job_id),
        "shardwheel.namespace": context.namespace,
        "shardwheel.attempt": context.attempt,
        "shardwheel.claim": context.claim,
        "shardwheel.worker": context.worker,
    }
    with _tracer().start_as_current_span(
        f"run {context.handler}", parent, SpanKind.CONSUMER, attributes,
        record_exception=False, set_status_on_exception=False,
    ) as span:  # fmt: skip
        outcome = "returned"
        try:
            yield
        except Snooze:
            outcome = "snoozed"
            raise
        except (Cancelled, asyncio.CancelledError):
            outcome = "stopped"
            raise
        except BaseException as error:
            outcome = "failed"
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            span.set_attribute("shardwheel.outcome", outcome)


@contextmanager
def _submitting(specs: Sequence[JobSpec]) -> Iterator[None]:
    from opentelemetry.trace import SpanKind

    handlers = sorted({spec.handler for spec in specs})
    name = handlers[0] if len(handlers) == 1 else "jobs"
    attributes: dict[str, str | int] = {
        "messaging.system": _NAME,
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": name,
        "messaging.batch.message_count": len(specs),
    }
    with _tracer().start_as_current_span(
        f"submit {name}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False
    ):
        for spec in specs:
            carry(spec)
        yield


def _current() -> str:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")


def _tracer() -> "Tracer":
    from opentelemetry import trace

    return trace.get_tracer(_NAME, __version__)
