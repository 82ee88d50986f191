"""Options that say when a schedule fires."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from server.domain.cron import parse_cron
from server.domain.cron_walk import FoldPolicy, GapPolicy
from server.domain.schedule import CronSpec, IntervalSpec, OnceSpec, ScheduleTiming, TimingSpec
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.option_types import DURATION, INSTANT
from shardwheel.v1.schedule_pb2 import CronTiming, ScheduleSpec


class Gap(StrEnum):
    """What happens to a time that a change of the clocks leaves out."""

    RUN_AFTER = "run_after"
    SKIP = "skip"


class Fold(StrEnum):
    """What happens to a fixed time that a change of the clocks repeats."""

    FIRST = "first"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingOptions:
    """One of --cron, --every and --at, with what belongs to it."""

    cron: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Cron expression of 5 fields, or 6 with the seconds first.")
    ] = None
    time_zone: Annotated[str | None, typer.Option(metavar="ZONE", help="IANA zone of --cron. [default: UTC]")] = None
    gap: Annotated[
        Gap | None, typer.Option(help="Times that clocks leave out: once after the gap, or not. [default: run_after]")
    ] = None
    fold: Annotated[
        Fold | None, typer.Option(help="Fixed times that clocks show twice: once, or both. [default: first]")
    ] = None
    every: Annotated[timedelta | None, typer.Option(**DURATION, help="Fire at this distance, at least 1s.")] = None
    anchor: Annotated[
        datetime | None, typer.Option(**INSTANT, help="Phase of --every. [default: when the schedule is created]")
    ] = None
    at: Annotated[datetime | None, typer.Option("--at", **INSTANT, help="Fire once, at this instant.")] = None
    start: Annotated[datetime | None, typer.Option(**INSTANT, help="No firing before this.")] = None
    end: Annotated[datetime | None, typer.Option(**INSTANT, help="No firing at or after this.")] = None

    @property
    def kind(self) -> str | None:
        """The field of ScheduleSpec that the options name: "cron", "interval", "once_at", or None.

        Raises RefusedInputError if they name two.
        """
        given = {"cron": self.cron, "interval": self.every, "once_at": self.at}
        kinds = [kind for kind, value in given.items() if value is not None]
        if len(kinds) > 1:
            raise RefusedInputError("error: timing: give one of --cron, --every and --at")
        return kinds[0] if kinds else None

    def require_kind(self) -> str:
        """The kind. Raises RefusedInputError if there is none, or if an option of another kind is given."""
        kind = self.kind
        if kind is None:
            raise RefusedInputError("error: timing: give one of --cron EXPR, --every DURATION and --at INSTANT")
        self._refuse_strangers(kind)
        return kind

    def apply(self, spec: ScheduleSpec) -> list[str]:
        """Sets what was given over what is there, and returns the paths that were set.

        Raises RefusedInputError if an option belongs to another kind of timing than the result has.
        """
        paths = [self._apply_kind(spec)] if self._names_timing() else []
        if self.start is not None:
            spec.start_at.FromDatetime(self.start)
            paths.append("start_at")
        if self.end is not None:
            spec.end_at.FromDatetime(self.end)
            paths.append("end_at")
        return paths

    def timing(self, now: datetime, hash_key: str) -> ScheduleTiming:
        """The timing, to compute with; `now` is the default anchor. Raises InvalidInput and RefusedInputError."""
        return ScheduleTiming(spec=self._spec(now, hash_key), start_at=self.start, end_at=self.end)

    def _spec(self, now: datetime, hash_key: str) -> TimingSpec:
        self.require_kind()
        if self.at is not None:
            return OnceSpec(at=self.at)
        if self.every is not None:
            return IntervalSpec(every=self.every, anchor=self.anchor or now)
        return CronSpec(
            expression=parse_cron(self.cron or "", hash_key=hash_key),
            time_zone="UTC" if self.time_zone is None else self.time_zone,
            gap=GapPolicy[(self.gap or Gap.RUN_AFTER).name],
            fold=FoldPolicy[(self.fold or Fold.FIRST).name],
        )

    def _names_timing(self) -> bool:
        parts = (self.cron, self.time_zone, self.gap, self.fold, self.every, self.anchor, self.at)
        return any(part is not None for part in parts)

    def _refuse_strangers(self, kind: str | None) -> None:
        if kind != "cron" and (self.time_zone, self.gap, self.fold) != (None, None, None):
            raise RefusedInputError("error: timing: --time-zone, --gap and --fold belong to --cron")
        if kind != "interval" and self.anchor is not None:
            raise RefusedInputError("error: timing: --anchor belongs to --every")

    def _apply_kind(self, spec: ScheduleSpec) -> str:
        there = spec.WhichOneof("timing")
        kind = self.kind or there
        self._refuse_strangers(kind)
        if self.at is not None:
            spec.once_at.FromDatetime(self.at)
            return "once_at"
        if kind == "interval":
            if self.every is not None:
                spec.interval.every.FromTimedelta(self.every)
            if self.anchor is not None:
                spec.interval.anchor.FromDatetime(self.anchor)
            return "interval"
        self._apply_cron(spec.cron)
        return "cron"

    def _apply_cron(self, cron: CronTiming) -> None:
        if self.cron is not None:
            cron.expression = self.cron
        if self.time_zone is not None:
            cron.time_zone = self.time_zone
        if self.gap is not None:
            cron.gap = CronTiming.GapPolicy.Value(self.gap.name)
        if self.fold is not None:
            cron.fold = CronTiming.FoldPolicy.Value(self.fold.name)
