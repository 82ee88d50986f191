"""What an import did, or would do, as people and programs see it."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from shard_manager.shardctl.ensure import Outcome
from shard_manager.shardctl.importer import Planned, Reading, Remark
from shard_manager.shardctl.layout import Block, Column, Line, Table
from shard_manager.shardctl.message_json import enum_name
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.times import format_instant
from shardwheel.v1.schedule_service_pb2 import EnsureSchedulesResponse

_DRY_WORDS = {"created": "create", "updated": "update", "deleted": "delete"}


def import_json(
    reading: Reading, outcome: Outcome | None, now: datetime, *, dry_run: bool, time_zone: str
) -> dict[str, Json]:
    """The whole result. `change` is null where no server could be asked."""
    return {
        "dry_run": dry_run,
        "time_zone": time_zone,
        "schedules": [_planned_json(planned, outcome, now) for planned in reading.planned],
        "deleted": list(outcome.deleted) if outcome else [],
        "skipped": [_remark_json(remark) for remark in [*reading.skipped, *reading.bad]],
    }


def import_blocks(
    reading: Reading, outcome: Outcome | None, now: datetime, *, dry_run: bool, zone_text: str
) -> Iterator[Block]:
    """A table of the schedules with their next three firings, and a line that counts."""
    yield _table(reading, outcome, now, dry_run)
    yield Line(_summary(reading, outcome, dry_run))
    yield Line(_zones(reading, zone_text))


def _table(reading: Reading, outcome: Outcome | None, now: datetime, dry_run: bool) -> Table:
    columns = (
        Column("CHANGE", state=True),
        Column("NAME", minimum=16, keep_end=True),
        Column("CRON", minimum=9),
        Column("NEXT"),
    )
    rows: list[tuple[str, ...]] = []
    for planned in reading.planned:
        change = _change(planned, outcome)
        word = _DRY_WORDS.get(change, change) if dry_run else change
        first, *later = [format_instant(firing) for firing in planned.next_firings(now)] or ["never"]
        rows.append((word or "?", planned.schedule.name, planned.expression, first))
        rows += [("", "", "", firing) for firing in later]
    for name in outcome.deleted if outcome else ():
        rows.append(("delete" if dry_run else "deleted", name, "", ""))
    return Table(columns, rows, empty="no schedules")


def _summary(reading: Reading, outcome: Outcome | None, dry_run: bool) -> str:
    if outcome is None:
        return f"dry run, nothing was stored: {counted(len(reading.planned), 'schedule')}"
    counts = Counter(_change(planned, outcome) for planned in reading.planned)
    counts["deleted"] = len(outcome.deleted)
    words = ("created", "updated", "unchanged", "deleted")
    shown = {word: f"to {_DRY_WORDS[word]}" if dry_run and word in _DRY_WORDS else word for word in words}
    text = ", ".join(f"{counts[word]} {shown[word]}" for word in words if counts[word]) or "nothing to do"
    return f"dry run, nothing was stored: {text}" if dry_run else text


def _zones(reading: Reading, zone_text: str) -> str:
    zones = dict.fromkeys((planned.time_zone, planned.zone_from) for planned in reading.planned)
    texts = [f"{zone} ({own or zone_text})" for zone, own in zones]
    return f"time zone: {', '.join(texts)}" if texts else ""


def _change(planned: Planned, outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    change = outcome.changes.get(planned.schedule.name, EnsureSchedulesResponse.CHANGE_UNSPECIFIED)
    return enum_name(EnsureSchedulesResponse.Change.DESCRIPTOR.values_by_number[change]) or ""


def _planned_json(planned: Planned, outcome: Outcome | None, now: datetime) -> Json:
    return {
        "name": planned.schedule.name,
        "change": _change(planned, outcome) or None,
        "file": planned.path,
        "line": planned.line,
        "cron": planned.expression,
        "time_zone": planned.time_zone,
        "handler": planned.schedule.spec.job.handler,
        "user": planned.user,
        "command": planned.command,
        "next_firings": [format_instant(firing) for firing in planned.next_firings(now)],
    }


def _remark_json(remark: Remark) -> Json:
    return {"file": remark.path, "line": remark.line, "reason": remark.text}
