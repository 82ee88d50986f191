"""A worker for tests that need one in a process of its own: `python -m worker_sdk …program:worker`."""

import ctypes
import os
import time

from worker_sdk import Context, Worker

worker = Worker(
    blocked_after=0.3, ca=os.environ.get("SHARDWHEEL_TEST_CA"), token=os.environ.get("SHARDWHEEL_TEST_TOKEN")
)


@worker.handler("quick")
def quick(payload: object) -> str:
    """Return at once."""
    return "quick"


@worker.handler("sleep", max_concurrency=20)
def sleep(payload: float) -> None:
    """Sleep without looking for a cancel."""
    time.sleep(payload)


@worker.handler("endless")
def endless(payload: object, ctx: Context) -> None:
    """Run until told to stop."""
    ctx.progress({"started": True})
    ctx.cancelled.wait()


@worker.handler("endless.async")
async def endless_async(payload: object, ctx: Context) -> None:
    """Run until told to stop."""
    await ctx.cancelled.wait_async()
    ctx.raise_if_cancelled()


@worker.handler("deaf")
def deaf(payload: object) -> None:
    """Never stop, whatever happens."""
    while True:
        time.sleep(60)


@worker.handler("hold.lock")
def hold_lock(payload: float) -> str:
    """Hold the interpreter's lock, as a badly written native library does: no other thread can run."""
    ctypes.PyDLL(None).usleep(int(payload * 1e6))
    return "released"
