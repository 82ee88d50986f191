"""From crontabs and manifests of CronJobs to schedules. No server is asked here.

Names come from file names and commands, or the names of the CronJobs, so that reading the same files again gives the
same names whatever moved inside them. What an entry leaves open is filled from the `Defaults`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO

from server.domain.cron import parse_cron
from server.domain.crontab import TEXT_LIMIT, CrontabEntry, CrontabProblem, parse_crontab
from server.domain.crontab_form import ignored_in_cron_d, looks_like_system_crontab
from server.domain.schedule import CronSpec, ScheduleTiming
from server.domain.zones import load_zone
from shard_manager.shardctl.cronjob import CronJob, CronJobProblem, looks_like_manifests, parse_cronjobs
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.payload import JSON_TYPE
from shard_manager.shardctl.preview import coming_firings
from shardwheel.v1.schedule_pb2 import OVERLAP_ALLOW, OVERLAP_SKIP, ScheduleSpec
from shardwheel.v1.schedule_service_pb2 import NamedScheduleSpec

STDIN = "-"
FILE_LABEL = "crontab"

_LABEL_CHARS = 200
_PREVIEWED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFile:
    """A file as it was read. `path` names it in messages."""

    path: str
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for all entries. `system` is None if each crontab's form is to be found out.

    CronJobs have their own handler, and their own zone: UTC if it is None, for theirs is not this machine's.
    """

    time_zone: str
    cronjob_time_zone: str | None = None
    cronjob_handler: str = "kubernetes.job"
    system: bool | None
    name_prefix: str
    spec: ScheduleSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A schedule to be stored, with the place that it comes from.

    `zone_from` says where its zone comes from if that is not the default of all; `user` and `command` are those of a
    crontab's entry.
    """

    path: str
    line: int
    schedule: NamedScheduleSpec
    zone_from: str = ""
    user: str | None = None
    command: str | None = None

    @property
    def expression(self) -> str:
        """The cron expression as it was written."""
        return self.schedule.spec.cron.expression

    @property
    def time_zone(self) -> str:
        """The zone by which it fires."""
        return self.schedule.spec.cron.time_zone

    def next_firings(self, now: datetime) -> list[datetime]:
        """The next three nominal times after `now`."""
        cron = parse_cron(self.expression, hash_key=self.schedule.name)
        timing = ScheduleTiming(spec=CronSpec(expression=cron, time_zone=self.time_zone))
        return coming_firings(timing, now, _PREVIEWED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something to say about a line; line 0 stands for the whole file."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the files hold: schedules; bad lines; entries that are no schedules; notes. `prefixes` by path, each the
    beginning of all names from that file."""

    planned: list[Planned] = field(default_factory=list)
    bad: list[Remark] = field(default_factory=list)
    skipped: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)
    prefixes: dict[str, str] = field(default_factory=dict)


def find_files(paths: Iterable[str], stdin: IO[bytes]) -> Iterator[ImportedFile]:
    """The files that are named, those of a directory in the order of their names, and stdin for `-`.

    Raises RefusedInputError if one cannot be read.
    """
    for path in paths:
        if path == STDIN:
            yield ImportedFile(path=STDIN, text=stdin.read(TEXT_LIMIT + 1))
            continue
        try:
            named = Path(path)
            inside = sorted(file for file in named.iterdir() if file.is_file()) if named.is_dir() else [named]
            for file in inside:
                with file.open("rb") as opened:
                    # One byte more than the reader takes, so that it says that the file is too long.
                    yield ImportedFile(path=str(file), text=opened.read(TEXT_LIMIT + 1))
        except OSError as error:
            raise RefusedInputError(f"error: FILE: cannot read {error.filename or path}: {error.strerror}") from None


def read_files(files: Iterable[ImportedFile], defaults: Defaults) -> Reading:
    """Reads all files, whatever is wrong with some of their lines."""
    reading = Reading()
    taken: set[str] = set()
    for file in files:
        if ignored_in_cron_d(file.path):
            text = "cron does not read a file of this name in cron.d; rename it to import it"
            reading.skipped.append(Remark(path=file.path, line=0, text=text))
            continue
        reading.prefixes[file.path] = defaults.name_prefix + _own_prefix(file.path)
        read = _read_cronjobs if looks_like_manifests(file.path, file.text) else _read_crontab
        read(reading, file, defaults, taken)
    return reading


def _read_crontab(reading: Reading, file: ImportedFile, defaults: Defaults, taken: set[str]) -> None:
    system = defaults.system
    if system is None:
        system = looks_like_system_crontab(_absolute(file.path), file.text)
    for item in parse_crontab(
        file.text,
        system=system,
        source=_source(file.path),
        taken_names=taken,
        validate=parse_cron,
        validate_time_zone=load_zone,
    ):
        if isinstance(item, CrontabProblem):
            reading.bad.append(Remark(path=file.path, line=item.line, text=item.reason))
        elif item.reboot:
            reading.skipped.append(Remark(path=file.path, line=item.line, text=" ".join(item.notes)))
        else:
            taken.add(item.name)
            reading.planned.append(_plan(file.path, item, defaults))
            reading.notes.extend(_notes(file.path, item))


def _read_cronjobs(reading: Reading, file: ImportedFile, defaults: Defaults, taken: set[str]) -> None:
    prefix = _own_prefix(file.path)
    for item in parse_cronjobs(file.text, validate=parse_cron, validate_time_zone=load_zone):
        if isinstance(item, CronJobProblem):
            remarks = reading.skipped if item.foreign else reading.bad
            remarks.append(Remark(path=file.path, line=item.line, text=item.reason))
            continue
        own = f"{item.namespace}/{item.name}" if item.namespace else item.name
        if prefix + own in taken:
            text = f"metadata.name: there is a CronJob {own!r} above already; names are unique"
            reading.bad.append(Remark(path=file.path, line=item.line, text=text))
        elif item.policy == "Replace" and not defaults.spec.overlap:
            text = "spec.concurrencyPolicy: Replace is not served; write Forbid, or give --overlap"
            reading.bad.append(Remark(path=file.path, line=item.line, text=text))
        else:
            taken.add(prefix + own)
            reading.planned.append(_plan_cronjob(file.path, item, prefix + own, defaults))


def _plan(path: str, entry: CrontabEntry, defaults: Defaults) -> Planned:
    spec = _spec(path, entry.payload(), defaults)
    spec.cron.expression = entry.expression
    spec.cron.time_zone = entry.time_zone or defaults.time_zone
    return Planned(
        path=path,
        line=entry.line,
        schedule=NamedScheduleSpec(name=defaults.name_prefix + entry.name, spec=spec),
        zone_from="CRON_TZ" if entry.time_zone is not None else "",
        user=entry.user,
        command=entry.command,
    )


def _plan_cronjob(path: str, item: CronJob, name: str, defaults: Defaults) -> Planned:
    spec = _spec(path, item.payload, defaults)
    spec.job.handler = defaults.cronjob_handler
    spec.cron.expression = item.expression
    zone_from = "" if defaults.cronjob_time_zone else "as in most clusters"
    spec.cron.time_zone = item.time_zone or defaults.cronjob_time_zone or "UTC"
    if not spec.overlap:
        spec.overlap = OVERLAP_SKIP if item.policy == "Forbid" else OVERLAP_ALLOW
    if item.deadline is not None and not spec.HasField("catch_up_window"):
        spec.catch_up_window.FromTimedelta(item.deadline)
    return Planned(
        path=path,
        line=item.line,
        schedule=NamedScheduleSpec(name=defaults.name_prefix + name, spec=spec, paused=item.suspended),
        zone_from="timeZone" if item.time_zone is not None else zone_from,
    )


def _spec(path: str, payload: Mapping[str, object], defaults: Defaults) -> ScheduleSpec:
    """What the schedules of crontabs and of CronJobs have in common."""
    spec = ScheduleSpec()
    spec.CopyFrom(defaults.spec)
    spec.job.payload = json.dumps(payload, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    spec.job.content_type = JSON_TYPE
    if path != STDIN:
        spec.job.labels[FILE_LABEL] = _absolute(path)[-_LABEL_CHARS:]
    return spec


def _notes(path: str, entry: CrontabEntry) -> Iterator[Remark]:
    for note in entry.notes:
        yield Remark(path=path, line=entry.line, text=note)
    if entry.environment.get("TZ") and entry.time_zone is None:
        text = "TZ is for the command and does not move its times; CRON_TZ or --time-zone does"
        yield Remark(path=path, line=entry.line, text=text)


def _own_prefix(path: str) -> str:
    """The beginning that the reader gives to all names from this file, also if it holds no entry now."""
    (entry,) = parse_crontab("* * * * * true", system=False, source=_source(path))
    assert isinstance(entry, CrontabEntry)
    return entry.name.partition(":")[0] + ":"


def _source(path: str) -> str:
    return "crontab" if path == STDIN else path


def _absolute(path: str) -> str:
    return path if path == STDIN else str(Path(path).absolute())
