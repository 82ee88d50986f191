"""The Python SDK with the handlers of the checklist: `python -m worker_sdk tests.conformance.sdk_worker:worker`."""

import asyncio
import os

from worker_sdk import Worker

worker = Worker(
    grace=float(os.environ.get("SHARDWHEEL_GRACE", "30")),
    ca=os.environ.get("SHARDWHEEL_CA"),
    token=os.environ.get("SHARDWHEEL_TOKEN"),
)


@worker.handler("example.echo", max_concurrency=4)
async def echo(payload: bytes) -> bytes:
    """Return the payload."""
    return payload


@worker.handler("example.sleep", max_concurrency=4)
async def sleep(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "slept"


@worker.handler("example.fail", max_concurrency=4)
async def fail(payload: bytes) -> None:
    """Fail."""
    raise ValueError("as asked")
