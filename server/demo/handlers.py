"""What the demo's workers run: a handler that leaves a record of having run, and waits if it is told to."""

import asyncio
import os
import time
from functools import cache
from pathlib import Path
from typing import Final

from server.demo.execution_log import COMPLETED, End, ExecutionLog, Start
from worker_sdk.context import Context
from worker_sdk.worker import Worker

HANDLER: Final = "demo.work"
SLOTS: Final = 200
LOG_VARIABLE: Final = "SHARDWHEEL_DEMO_LOG"
"""Names the worker's file."""

worker = Worker()


@cache
def _log() -> ExecutionLog:
    return ExecutionLog(Path(os.environ[LOG_VARIABLE]))


@worker.handler(HANDLER, max_concurrency=SLOTS)
async def work(payload: bytes, context: Context) -> None:
    """Record the start, wait for as many seconds as the payload says, then record the end, on the disk both."""
    started_at = time.time()
    claimed_at = context.started_at
    log = _log()
    log.write(
        Start(
            job=context.job_id,
            claim=context.claim,
            attempt=context.attempt,
            worker=context.worker,
            claimed_at=claimed_at.timestamp() if claimed_at is not None else 0.0,
            started_at=started_at,
        )
    )
    outcome = COMPLETED
    try:
        if payload:
            await asyncio.sleep(float(payload))
        await log.durable()
    except BaseException as stopped:
        outcome = type(stopped).__name__
        raise
    finally:
        end = End(job=context.job_id, claim=context.claim, worker=context.worker, ended_at=time.time(), outcome=outcome)
        log.write(end)
    await log.durable()
