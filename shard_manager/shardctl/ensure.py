"""Storing planned schedules: in as few calls as the API's limits allow, all checked before the first one stores."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shard_manager.shardctl.call_error import CallRefusedError
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.importer import Planned, Reading, Remark
from shard_manager.shardctl.output import progress_bar
from shardwheel.v1.schedule_service_pb2 import (
    EnsureSchedulesRequest,
    EnsureSchedulesResponse,
    PauseScheduleRequest,
)

MOST_SCHEDULES = 1000
_MOST_BYTES = 4 * 1024 * 1024 - 64 * 1024
_ITEM = re.compile(r"^schedules\[([0-9]{1,9})\]\.?(.*)$")


@dataclass(frozen=True, slots=True)
class Portion:
    """Schedules of one call, and the prefix to prune, empty for none."""

    planned: Sequence[Planned]
    prune_prefix: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became, or would become, of the schedules by name, and which were deleted."""

    changes: dict[str, EnsureSchedulesResponse.Change.ValueType]
    deleted: list[str]


class EntriesRefusedError(Exception):
    """The server refuses these schedules: each with the remark about its line."""

    def __init__(self, refused: list[tuple[Planned, Remark]]) -> None:
        super().__init__(f"{len(refused)} schedules refused")
        self.refused = refused


def portions(reading: Reading, *, prune: bool) -> list[Portion]:
    """Cuts the plan into calls. With `prune` each prefix is one call, for what a call does not name is deleted.

    Raises RefusedInputError if that call would be too large.
    """
    if not prune:
        return [Portion(part) for part in _cut(reading.planned)]
    return list(_by_prefix(reading))


def _by_prefix(reading: Reading) -> Iterator[Portion]:
    for prefix in dict.fromkeys(reading.prefixes.values()):
        planned = [each for each in reading.planned if reading.prefixes[each.path] == prefix]
        if len(list(_cut(planned))) > 1:
            raise RefusedInputError(
                f"error: --prune: {len(planned)} schedules begin with {prefix!r}; "
                f"at most {MOST_SCHEDULES} (4 MiB) can be compared at once. Split the file, or leave out --prune."
            )
        yield Portion(planned, prefix)


def _cut(planned: Sequence[Planned]) -> Iterator[list[Planned]]:
    part: list[Planned] = []
    room = _MOST_BYTES
    for each in planned:
        size = each.schedule.ByteSize() + 8
        if part and (len(part) == MOST_SCHEDULES or size > room):
            yield part
            part, room = [], _MOST_BYTES
        part.append(each)
        room -= size
    if part:
        yield part


async def ensure(connection: Connection, parts: Sequence[Portion], *, dry_run: bool) -> Outcome:
    """Stores all portions, or with `dry_run` only tells what storing would do.

    One call is all or nothing by itself; several are first all run dry, so that a refused schedule stores nothing.
    Raises EntriesRefusedError and CommandFailedError.
    """
    outcome = Outcome({}, [])
    with progress_bar() as progress:
        rounds = [True] if dry_run else [True, False] if len(parts) > 1 else [False]
        task = progress.add_task("checking", total=len(rounds) * sum(len(part.planned) for part in parts))
        for dry in rounds:
            progress.update(task, description="checking" if dry else "storing")
            outcome = Outcome({}, [])
            for part in parts:
                await _ensure_one(connection, part, dry, outcome)
                progress.update(task, advance=len(part.planned))
    return outcome


async def pause_suspended(connection: Connection, reading: Reading, outcome: Outcome) -> None:
    """Pauses what is suspended in its manifest and was stored before; new schedules have started paused."""
    for planned in reading.planned:
        named = planned.schedule
        if named.paused and outcome.changes.get(named.name) != EnsureSchedulesResponse.CREATED:
            note = f"suspended in {planned.path}"
            request = PauseScheduleRequest(namespace=connection.settings.namespace, name=named.name, note=note)
            await connection.call(connection.schedules.PauseSchedule, request)


async def _ensure_one(connection: Connection, part: Portion, dry_run: bool, outcome: Outcome) -> None:
    request = EnsureSchedulesRequest(
        namespace=connection.settings.namespace,
        schedules=[each.schedule for each in part.planned],
        prune_prefix=part.prune_prefix,
        dry_run=dry_run,
    )
    try:
        response = await connection.call(connection.schedules.EnsureSchedules, request)
    except CallRefusedError as error:
        refused = list(_refused(part, error))
        if not refused:
            raise
        raise EntriesRefusedError(refused) from None
    for result in response.results:
        if result.change == EnsureSchedulesResponse.DELETED:
            outcome.deleted.append(result.name)
        else:
            outcome.changes[result.name] = result.change


def _refused(part: Portion, error: CallRefusedError) -> Iterator[tuple[Planned, Remark]]:
    for name, reason in error.violations:
        match = _ITEM.match(name)
        if match is not None and int(match[1]) < len(part.planned):
            planned = part.planned[int(match[1])]
            text = f"{match[2] or 'schedule'}: {reason}"
            yield planned, Remark(path=planned.path, line=planned.line, text=text)
