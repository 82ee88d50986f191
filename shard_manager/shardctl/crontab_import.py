"""`shardctl schedules import`: real crontabs, and CronJobs of Kubernetes, become schedules."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import grpc
import typer

from server.domain.errors import InvalidInput
from server.domain.zones import load_zone
from shard_manager.shardctl.call_error import CallFailedError
from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.ensure import EntriesRefusedError, Outcome, ensure, pause_suspended, portions
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.import_view import import_blocks, import_json
from shard_manager.shardctl.importer import Defaults, Reading, Remark, find_files, read_files
from shard_manager.shardctl.machine_zone import machine_zone
from shard_manager.shardctl.option_types import COUNT, DURATION
from shard_manager.shardctl.schedule_options import PolicyOptions
from shard_manager.shardctl.text import counted, printable
from shardwheel.v1.schedule_pb2 import ScheduleSpec

_NO_SERVER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def import_(
    cli: Cli,
    *,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Crontabs or manifests, directories of them, or - for stdin.", show_default=False
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change and the next firings; works offline.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out bad entries instead of storing nothing.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete schedules of the same files whose entries are gone.")
    ] = False,
    system: Annotated[
        bool | None,
        typer.Option("--system/--user-crontab", help="With a user column, or without. [default: by path and text]"),
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Where CRON_TZ is not set. [default: this machine's zone]")
    ] = None,
    handler: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Handler of the jobs. [default: shell; kubernetes.job for CronJobs]"),
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Put before all names, for example web1/.")] = "",
    max_attempts: Annotated[
        int | None, typer.Option(**COUNT, help="Tries of each job. [default: 1, as cron's]")
    ] = None,
    attempt_timeout: Annotated[timedelta | None, typer.Option(**DURATION, help="Limit of each attempt.")] = None,
    policy: PolicyOptions,
) -> None:
    """Make schedules of crontabs, one for each entry, named FILE:COMMAND, and of Kubernetes CronJobs, named
    FILE:NAMESPACE/NAME. A second import changes nothing.

    The system form (with a user column) is told by path and text. Nothing is stored if an entry is bad, unless
    --skip-bad is given. @reboot entries are skipped. Jobs get the payload {"command", "stdin", "environment", "user",
    "shell"}. Where cron would run jobs of one entry side by side, the next one is skipped; --overlap allow is cron's
    way. CronJobs keep their concurrencyPolicy, deadline and zone (UTC if they name none and --time-zone is not given);
    a suspended one starts paused. Names of --prune begin with the file's name: files of the same name on several
    machines need a --prefix each.
    More than 1000 entries are stored in several steps, which cannot be combined with --prune.
    """
    spec = ScheduleSpec()
    spec.job.handler = handler or "shell"
    spec.job.retry.max_attempts = max_attempts or 1
    if attempt_timeout is not None:
        spec.job.timeouts.attempt_timeout.FromTimedelta(attempt_timeout)
    policy.apply(spec)
    zone, zone_text = _zone(time_zone)
    defaults = Defaults(
        time_zone=zone,
        cronjob_time_zone=time_zone,
        cronjob_handler=handler or "kubernetes.job",
        system=system,
        name_prefix=prefix,
        spec=spec,
    )
    reading = read_files(find_files(files, sys.stdin.buffer), defaults)
    cli.output.note(*(f"note: {printable(str(remark))}" for remark in [*reading.skipped, *reading.notes]))
    if reading.bad and not (dry_run or skip_bad):
        raise _refusal(reading.bad, dry_run)
    if reading.bad and prune:
        raise _refusal(reading.bad, dry_run, "With --prune, what is skipped would be deleted: correct the lines first.")
    reading, outcome = await _ensure(cli, reading, prune=prune, dry_run=dry_run, skip_bad=skip_bad)
    now = datetime.now(UTC)
    cli.output.emit(
        import_json(reading, outcome, now, dry_run=dry_run, time_zone=zone),
        *import_blocks(reading, outcome, now, dry_run=dry_run, zone_text=zone_text),
    )
    if reading.bad and not skip_bad:
        raise _refusal(reading.bad, dry_run)
    cli.output.note(*(f"skipped: {printable(str(remark))}" for remark in reading.bad))


async def _ensure(
    cli: Cli, reading: Reading, *, prune: bool, dry_run: bool, skip_bad: bool
) -> tuple[Reading, Outcome | None]:
    """Stores the reading, or less of it if the server refuses some; the outcome is None if no server was asked."""
    async with cli.connect() as connection:
        while True:
            parts = portions(reading, prune=prune)
            try:
                outcome = await ensure(connection, parts, dry_run=dry_run)
                if not dry_run:
                    await pause_suspended(connection, reading, outcome)
                return reading, outcome
            except EntriesRefusedError as error:
                reading = _without(reading, error)
                if prune or not (skip_bad or dry_run):
                    raise _refusal(reading.bad, dry_run) from None
            except CallFailedError as error:
                if not dry_run or error.code not in _NO_SERVER:
                    raise
                cli.output.note(f"note: no server at {cli.settings.address}, so what is stored already is not compared")
                return reading, None


def _without(reading: Reading, error: EntriesRefusedError) -> Reading:
    names = {planned.schedule.name for planned, _ in error.refused}
    kept = [planned for planned in reading.planned if planned.schedule.name not in names]
    return replace(reading, planned=kept, bad=[*reading.bad, *(remark for _, remark in error.refused)])


def _refusal(bad: list[Remark], dry_run: bool, *lines: str) -> RefusedInputError:
    advice = lines or ("Correct the lines, or leave them out with --skip-bad.",)
    count = counted(len(bad), "bad entry", "bad entries")
    nothing = "" if dry_run else "; nothing was stored"
    return RefusedInputError(*(printable(str(remark)) for remark in bad), f"error: {count}{nothing}", *advice)


def _zone(given: str | None) -> tuple[str, str]:
    """The zone of entries without CRON_TZ, and where it comes from, in words."""
    if given is None:
        own = machine_zone()
        return (own, "this machine's") if own is not None else ("UTC", "this machine's is not known")
    try:
        load_zone(given)
    except InvalidInput as error:
        raise RefusedInputError(f"error: --time-zone: {printable(str(error))}") from None
    return given, "--time-zone"
