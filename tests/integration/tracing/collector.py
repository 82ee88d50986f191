"""A collector of traces, as far as tests need one: it takes spans by OTLP over gRPC and keeps them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True, slots=True)
class Span:
    """A span that came in; ids are in hex, `parent` is empty for a root."""

    name: str
    trace: str
    span: str
    parent: str
    service: str
    attributes: dict[str, object]
    failed: bool
    began_ns: int
    ended_ns: int


class Collector(TraceServiceServicer):
    """Serves `address`; `raw` is all that came in, as it came."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Span] = []
        self.raw = b""

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name, the earliest first."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began_ns)

    async def Export(self, request: Any, context: Any) -> Any:
        """Keep spans."""
        self.raw += request.SerializeToString()
        for resource in request.resource_spans:
            about = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_span(span, str(about["service.name"])) for span in scope.spans]
        return pb.ExportTraceServiceResponse()


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that runs during the block."""
    collector = Collector()
    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(0)


def _span(span: Any, service: str) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        service=service,
        attributes=_attributes(span.attributes),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
    )


def _attributes(pairs: Any) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
