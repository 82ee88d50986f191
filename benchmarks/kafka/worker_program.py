"""The worker of the scenario `kafka`: a handler that does nothing."""

from benchmarks.kafka.names import HANDLER
from worker_sdk import Worker

worker = Worker(watchdog=0)


@worker.handler(HANDLER, max_concurrency=1000)
async def nothing(payload: bytes) -> None:
    """Return at once."""
