"""The worker of the scenario `idle`: notes when its handler starts."""

import json
import os
import time
from pathlib import Path

from worker_sdk import Context, Worker

worker = Worker()
_log = Path(os.environ.get("SHARDWHEEL_BENCH_LOG", os.devnull)).open("a", buffering=1)  # noqa: SIM115 - lives as long


@worker.handler("bench.idle", max_concurrency=8)
async def idle(payload: dict[str, int], ctx: Context) -> None:
    """Note the time."""
    _log.write(json.dumps({"job_id": ctx.job_id, "at": time.time()}) + "\n")
