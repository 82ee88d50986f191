"""A program that traces and uses Shardwheel: it submits a job inside a span of its own, and runs it, at the second try.

`python application.py NODE COLLECTOR` prints the id of the job.
"""

import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from worker_sdk import Client, Context, RetryPolicy, Worker


def main(node: str, collector: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"http://{collector}")))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("shop")
    worker = Worker(node, name="w", watchdog=0)

    @worker.handler("email.send", retry=RetryPolicy(max_attempts=3, initial_delay=0.05))
    async def send(payload: object, ctx: Context) -> None:
        with tracer.start_as_current_span("connect", record_exception=False, set_status_on_exception=False):
            if ctx.attempt == 1:
                raise ConnectionError(f"planted-error: {payload}")

    @worker.handler("report")
    def report(payload: object) -> None:
        trace.get_current_span().set_attribute("seen", True)

    worker.start()
    with Client(node) as client, tracer.start_as_current_span("order"):
        job_id = client.submit("email.send", "planted-payload").job_id
        client.wait(job_id, timeout=60)
        client.wait(client.submit("report").job_id, timeout=60)
    worker.stop()
    provider.shutdown()
    print(job_id, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
