"""Submits the demo's jobs over gRPC, in batches, and remembers what was answered."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from server.demo.handlers import HANDLER
from server.demo.report import Phase, SubmittedJob
from worker_sdk.async_client import AsyncClient
from worker_sdk.jobs import NewJob

_BATCH: Final = 500
_AT_A_TIME: Final = 4


class Submitter:
    """Each batch is stored whole, and found again under its keys if a killed node took the answer with it."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.jobs: dict[int, SubmittedJob] = {}
        """The jobs whose submit was answered, by id."""

    async def submit(self, phase: Phase, delays: Sequence[timedelta | None], *, runs_s: float = 0.0) -> None:
        """Submit one job for each delay; None means due at once. Jobs that run for long, `runs_s`, go first.

        Raises `ShardwheelError` if a batch is not taken.
        """
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def send(batch: Sequence[timedelta | None]) -> None:
            async with turns:
                await self._send(phase, batch, runs_s)

        try:
            async with asyncio.TaskGroup() as group:
                for first in range(0, len(delays), _BATCH):
                    group.create_task(send(delays[first : first + _BATCH]))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send(self, phase: Phase, delays: Sequence[timedelta | None], runs_s: float) -> None:
        submitted_at, now = time.time(), datetime.now(UTC)
        due = [None if delay is None else now + delay for delay in delays]
        payload, priority = (b"%g" % runs_s, 1) if runs_s else (b"", 3)
        answers = await self._client.submit_many(
            NewJob(handler=HANDLER, payload=payload, priority=priority, due_at=one) for one in due
        )
        for answer, one in zip(answers, due, strict=True):
            self.jobs[answer.job_id] = SubmittedJob(
                phase=phase, submitted_at=submitted_at, due_at=None if one is None else one.timestamp()
            )
