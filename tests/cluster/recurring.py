"""Schedules of a run: created before the load, with the expansion that is expected of each."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Final

from tests.cluster.evidence import PlannedSchedule
from tests.cluster.worker_program import SHORT
from worker_sdk import AsyncClient, CatchUp, NewSchedule, Overlap
from worker_sdk.connection import ConnectionOptions

_ANCHOR: Final = datetime(2000, 1, 1, tzinfo=UTC)
_AT_A_TIME: Final = 8
# On a busy machine so much is needed to create one.
_CREATION_S: Final = 0.12


async def create_schedules(
    options: ConnectionOptions, count: int, seconds: float, steps: Sequence[int] = (1,)
) -> list[PlannedSchedule]:
    """Create schedules that fire for about the next so many seconds, every so many seconds in turn.

    Half of them have to fire exactly, half go by the default policies; half are cron expressions, half intervals.
    """
    # Not at once: the answer of a schedule that is created just before its first firing may know of it.
    now = time.time()
    first = ceil(now + 2 + count * _CREATION_S)
    end = max(ceil(now + seconds), first + max(steps) + 1)
    turns = asyncio.Semaphore(_AT_A_TIME)
    async with AsyncClient(**options, timeout=20.0) as client:

        async def create(number: int) -> PlannedSchedule:
            step = steps[number % len(steps)]
            # The steps divide a minute, so that both kinds fire at multiples of the step.
            start = -(-first // step) * step
            exact, cron = number % 2 == 0, number % 4 < 2
            wanted = NewSchedule(
                name=f"schedule-{number}",
                handler=SHORT,
                payload={},
                job_name=f"schedule-{number}",
                cron=f"*/{step} * * * * *" if cron else "",
                every=None if cron else float(step),
                anchor=None if cron else _ANCHOR,
                start_at=datetime.fromtimestamp(start, UTC),
                end_at=datetime.fromtimestamp(end, UTC),
                catch_up=CatchUp.ALL if exact else None,
                overlap=Overlap.ALLOW if exact else None,
            )
            async with turns:
                created = await client.create_schedule(wanted)
            assert created.next_fire_at == wanted.start_at
            nominal = tuple(float(second) for second in range(start, end, step))
            return PlannedSchedule(schedule=created.id, name=wanted.name, nominal=nominal, exact=exact)

        return list(await asyncio.gather(*(create(number) for number in range(count))))
