"""Coming firings of a definition, and what is worth knowing about it. Nothing is stored or read."""

import asyncio
from datetime import datetime
from typing import Final

from server.api.convert import instant, timestamp
from server.api.schedule_convert import check_timing, describe_timing
from server.api.validation import Problems, check_instant
from server.domain.schedule import CronSpec, ScheduleTiming
from server.domain.schedule_times import next_nominal
from shardwheel.v1.schedule_service_pb2 import PreviewScheduleRequest, PreviewScheduleResponse

DEFAULT_COUNT: Final = 5
MAX_COUNT: Final = 1000
# The event loop is given a turn between so many firings.
_FIRINGS_PER_TURN: Final = 50


async def preview(request: PreviewScheduleRequest, now: datetime) -> PreviewScheduleResponse:
    """Answer PreviewSchedule; raise InvalidRequest."""
    problems = Problems()
    timing = None
    if not request.HasField("spec"):
        problems.add("spec", "", "is required")
    else:
        timing = check_timing(problems, "spec", "", request.spec, now)
    if request.HasField("after"):
        check_instant(problems, "after", request.after)
    if not 0 <= request.count <= MAX_COUNT:
        problems.add("count", request.count, f"has to be from 1 to {MAX_COUNT}; 0 means {DEFAULT_COUNT}")
    problems.check()
    assert timing is not None
    after = instant(request.after) if request.HasField("after") else now
    firings = await _coming(timing, after, request.count or DEFAULT_COUNT)
    return PreviewScheduleResponse(
        firings=[timestamp(firing) for firing in firings],
        description=describe_timing(timing),
        notes=_notes(timing, fires=bool(firings)),
    )


async def _coming(timing: ScheduleTiming, after: datetime, count: int) -> list[datetime]:
    firings: list[datetime] = []
    found = next_nominal(timing, after)
    while found is not None and len(firings) < count:
        firings.append(found)
        if len(firings) % _FIRINGS_PER_TURN == 0:
            await asyncio.sleep(0)
        found = next_nominal(timing, found)
    return firings


def _notes(timing: ScheduleTiming, *, fires: bool) -> list[str]:
    notes: list[str] = []
    if isinstance(timing.spec, CronSpec):
        notes += timing.spec.expression.notes
    if timing.jitter:
        seconds = timing.jitter.total_seconds()
        notes.append(f"jobs are due up to {seconds:g} s after these times, and before the next one")
    if not fires:
        notes.append("it does not fire any more after this instant")
    return notes
