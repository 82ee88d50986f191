"""Options of a schedule beyond its timing and its job."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from shard_manager.shardctl.option_types import DURATION
from shardwheel.v1.schedule_pb2 import CatchUpPolicy, OverlapPolicy, ScheduleSpec


class Overlap(StrEnum):
    """What happens if jobs of earlier firings are still live."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """What happens with firings missed during an outage or a pause."""

    ONE = "one"
    ALL = "all"
    NONE = "none"


OverlapOption = Annotated[
    Overlap | None, typer.Option("--overlap", help="If an earlier job is still live. [default: skip]")
]
CatchUpOption = Annotated[
    CatchUp | None, typer.Option("--catch-up", help="Firings missed in an outage or a pause. [default: one]")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What is not given is left to the server's defaults."""

    overlap: OverlapOption = None
    catch_up: CatchUpOption = None
    catch_up_window: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Older missed firings are skipped. [default: 1d]")
    ] = None
    jitter: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Spread due times by up to this much. [default: 0s]")
    ] = None

    def apply(self, spec: ScheduleSpec) -> list[str]:
        """Sets what was given, and returns the paths that were set."""
        paths = []
        if self.overlap is not None:
            spec.overlap = OverlapPolicy.Value(f"OVERLAP_{self.overlap.name}")
            paths.append("overlap")
        if self.catch_up is not None:
            spec.catch_up = CatchUpPolicy.Value(f"CATCH_UP_{self.catch_up.name}")
            paths.append("catch_up")
        if self.catch_up_window is not None:
            spec.catch_up_window.FromTimedelta(self.catch_up_window)
            paths.append("catch_up_window")
        if self.jitter is not None:
            spec.jitter.FromTimedelta(self.jitter)
            paths.append("jitter")
        return paths
