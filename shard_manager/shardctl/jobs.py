"""`shardctl jobs`: submit, look at and steer jobs."""

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import grpc
import typer

from shard_manager.shardctl.bulk import submit_file
from shard_manager.shardctl.call_error import CallFailedError
from shard_manager.shardctl.command import Cli, command, group
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import CommandFailedError, RefusedInputError
from shard_manager.shardctl.job_options import JobOptions, PayloadArgument
from shard_manager.shardctl.job_view import job_blocks, job_json, jobs_table, listed_job_json, state_name
from shard_manager.shardctl.layout import Block, Line
from shard_manager.shardctl.option_types import DURATION, INSTANT, SINCE, parse_labels
from shard_manager.shardctl.output import Json
from shard_manager.shardctl.selection import Selection
from shard_manager.shardctl.text import counted
from shard_manager.shardctl.waiting import wait_for_job
from shardwheel.v1.job_pb2 import Job, JobSpec
from shardwheel.v1.job_service_pb2 import (
    CancelJobRequest,
    GetJobRequest,
    ListJobsRequest,
    RetryJobRequest,
    SubmitJobRequest,
    SubmitJobResponse,
)
from shardwheel.v1.schedule_service_pb2 import GetScheduleRequest

app = group("Submit, find and steer jobs.")

_PAGE = 1000
_MAYBE_STORED = "The job may be stored all the same; with a --dedupe-key the submit is safe to repeat."

JobId = Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="Id of the job.", show_default=False)]
OptionalJobId = Annotated[
    int | None, typer.Argument(metavar="[ID]", min=1, max=2**63 - 1, help="Id of the job.", show_default=False)
]


class State(StrEnum):
    """States of a job, as options name them."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@command(app, "submit")
async def submit(
    cli: Cli,
    *,
    handler: Annotated[
        str | None,
        typer.Argument(metavar="HANDLER", help="Name of the worker code, for example email.send.", show_default=False),
    ] = None,
    payload: PayloadArgument = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="JSONL", help="Submit many: one JSON object per line; - reads stdin."),
    ] = None,
    at: Annotated[datetime | None, typer.Option("--at", **INSTANT, help="When the job becomes due.")] = None,
    delay: Annotated[timedelta | None, typer.Option("--in", **DURATION, help="Time until it becomes due.")] = None,
    dedupe_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Makes the submit safe to repeat: one job per key.")
    ] = None,
    dedupe_ttl: Annotated[timedelta | None, typer.Option(**DURATION, help="How long the key is kept.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 if it is not completed.")] = False,
    options: JobOptions,
) -> None:
    """Submit a job, or with --file many.

    A line of the file has the fields of a job: {"handler": "email.send", "payload": {"to": "a@b.c"}, "priority": 2}.
    "payload" is any JSON value; "payload_text" and "payload_base64" stand for other bytes. Further fields:
    content_type, name, due_at or delay, dedupe_key, dedupe_ttl, concurrency_key, concurrency_limit, labels, retry
    (max_attempts, initial_delay, multiplier, max_delay, non_retryable_error_types) and timeouts (start_timeout,
    attempt_timeout, total_timeout). Options given besides --file are taken for lines that lack them.
    """
    job = JobSpec(handler=handler or "")
    options.apply(job)
    if (given := options.read_payload(payload)) is not None:
        job.payload, job.content_type = given.data, given.content_type
    if at is not None and delay is not None:
        raise RefusedInputError("error: due: give either --at or --in, not both")
    if at is not None:
        job.due_at.FromDatetime(at)
    if delay is not None:
        job.delay.FromTimedelta(delay)
    job.dedupe_key = dedupe_key or ""
    if dedupe_ttl is not None:
        job.dedupe_ttl.FromTimedelta(dedupe_ttl)
    if file is not None:
        if wait or dedupe_key or given is not None:
            raise RefusedInputError("error: --file: a payload, --dedupe-key and --wait are for one job; use the lines")
        await submit_file(cli, file, job)
        return
    if not handler:
        raise RefusedInputError("error: handler: name the HANDLER that shall run the job, or give --file")
    await _submit_one(cli, job, wait)


async def _submit_one(cli: Cli, job: JobSpec, wait: bool) -> None:
    async with cli.connect() as connection:
        request = SubmitJobRequest(namespace=cli.settings.namespace, job=job)
        try:
            response = await connection.call(connection.jobs.SubmitJob, request)
        except CallFailedError as error:
            if error.maybe_done and not job.dedupe_key:
                raise CommandFailedError(*error.lines, _MAYBE_STORED) from None
            raise
        if response.differs:
            cli.output.note("note: the dedupe key belongs to a job with other content; that job is shown")
        if not wait:
            _emit_submitted(cli, response)
            return
        final = await wait_for_job(connection, response.job.id)
    response.job.CopyFrom(final)
    _emit_submitted(cli, response, *job_blocks(final, datetime.now(UTC)))
    _fail_unless_completed(final)


def _emit_submitted(cli: Cli, response: SubmitJobResponse, *blocks: Block) -> None:
    data: Json = {"job": job_json(response.job), "created": response.created, "differs": response.differs}
    what = "submitted" if response.created else "exists already"
    state = state_name(response.job.state)
    cli.output.emit(data, *(blocks or [Line(f"job {response.job.id} {what} ({state})")]))


@command(app, "get")
async def get(cli: Cli, *, job_id: JobId) -> None:
    """Show a job with its payload, result and failed attempts, and why it waits."""
    async with cli.connect() as connection:
        request = GetJobRequest(namespace=cli.settings.namespace, id=job_id)
        job = await connection.call(connection.jobs.GetJob, request)
    cli.output.emit(job_json(job), *job_blocks(job, datetime.now(UTC)))


@command(app, "list")
async def list_(
    cli: Cli,
    *,
    state: Annotated[list[State] | None, typer.Option("--state", help="Only this state. May be repeated.")] = None,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this handler.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Only with this label. May be repeated.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME|ID", help="Only jobs made by this schedule; digits are taken as an id.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(**SINCE, help="Only created since: an INSTANT, or a DURATION ago such as 1h.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(**SINCE, help="Only created before, in the same forms.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
) -> None:
    """List jobs, the newest first. Filters that are given all have to match."""
    request = ListJobsRequest(
        namespace=cli.settings.namespace,
        handler=handler or "",
        states=[Job.State.Value(each.name) for each in state or ()],
        labels=parse_labels(label),
    )
    if since is not None:
        request.created_from.FromDatetime(since)
    if until is not None:
        request.created_before.FromDatetime(until)
    async with cli.connect() as connection:
        if schedule is not None:
            request.schedule_id = await _schedule_id(connection, schedule)
        jobs, more = await _list(connection, request, limit)
    cli.output.emit({"jobs": [listed_job_json(job) for job in jobs], "more": more}, jobs_table(jobs))
    if more:
        cli.output.note(f"note: these are the newest {limit}; --limit shows more")


async def _list(connection: Connection, request: ListJobsRequest, limit: int) -> tuple[list[Job], bool]:
    """Follows the pages until `limit` jobs are there; the second value tells whether there are more."""
    jobs: list[Job] = []
    while True:
        request.page_size = min(limit - len(jobs) + 1, _PAGE)
        response = await connection.call(connection.jobs.ListJobs, request)
        jobs += response.jobs
        request.page_token = response.next_page_token
        if len(jobs) > limit or not request.page_token:
            return jobs[:limit], len(jobs) > limit


async def _schedule_id(connection: Connection, schedule: str) -> int:
    if schedule.isascii() and schedule.isdigit():
        return int(schedule)
    request = GetScheduleRequest(namespace=connection.settings.namespace, name=schedule)
    found = await connection.call(connection.schedules.GetSchedule, request)
    return found.id


@command(app, "wait")
async def wait(cli: Cli, *, job_id: JobId) -> None:
    """Wait until a job is final and show it. Exit code 0 if it completed, 1 if it failed or was cancelled.

    --timeout limits the whole wait; without it there is no limit.
    """
    async with cli.connect() as connection:
        job = await wait_for_job(connection, job_id)
    cli.output.emit(job_json(job), *job_blocks(job, datetime.now(UTC)))
    _fail_unless_completed(job)


@command(app, "cancel")
async def cancel(
    cli: Cli,
    *,
    job_id: OptionalJobId = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Shown as the error of the job.")] = None,
    selection: Selection,
) -> None:
    """Cancel a job, or all live jobs that filters select: pending ones at once, running ones by their workers."""
    request_all = selection.request(cli.settings.namespace, job_id, [Job.PENDING, Job.RUNNING])
    if request_all is not None:
        await _cancel_all(cli, request_all, reason or "")
        return
    assert job_id is not None
    async with cli.connect() as connection:
        request = CancelJobRequest(namespace=cli.settings.namespace, id=job_id, reason=reason or "")
        job = await connection.call(connection.jobs.CancelJob, request)
    told = job.state == Job.RUNNING
    text = "runs; its worker has been told to stop" if told else f"is {state_name(job.state)}"
    cli.output.emit(job_json(job), Line(f"job {job.id} {text}"))


async def _cancel_all(cli: Cli, selected: ListJobsRequest, reason: str) -> None:
    counts = Counter[str]()
    async with cli.connect() as connection:
        jobs, _ = await _list(connection, selected, sys.maxsize)
        for job in jobs:
            request = CancelJobRequest(namespace=cli.settings.namespace, id=job.id, reason=reason)
            try:
                done = await connection.call(connection.jobs.CancelJob, request)
            except CallFailedError as error:
                # It has ended since it was listed.
                if error.code is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                continue
            counts["told" if done.state == Job.RUNNING else "cancelled"] += 1
    text = f"{counted(counts['cancelled'], 'job')} cancelled, {counted(counts['told'], 'running job')} told to stop"
    cli.output.emit({"cancelled": counts["cancelled"], "told_to_stop": counts["told"]}, Line(text))


@command(app, "retry")
async def retry(cli: Cli, *, job_id: JobId) -> None:
    """Run a failed or cancelled job again with its tries counted anew, or one that backs off at once."""
    async with cli.connect() as connection:
        request = RetryJobRequest(namespace=cli.settings.namespace, id=job_id)
        job = await connection.call(connection.jobs.RetryJob, request)
    cli.output.emit(job_json(job), Line(f"job {job.id} is {state_name(job.state)}"))


def _fail_unless_completed(job: Job) -> None:
    if job.state != Job.COMPLETED:
        raise CommandFailedError(
            f"error: job {job.id} is {state_name(job.state)}: {job.error.type or 'no error given'}",
            f"`shardctl jobs retry {job.id}` runs it again.",
        )
