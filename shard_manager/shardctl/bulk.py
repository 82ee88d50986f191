"""Submitting a file of jobs: read and checked as a whole first, then stored in batches."""

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import IO

from rich.progress import Progress

from server.domain.errors import InvalidInput
from shard_manager.shardctl.call_error import CallFailedError, CallRefusedError
from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.connection import Connection
from shard_manager.shardctl.failure import CommandFailedError, RefusedInputError
from shard_manager.shardctl.job_line import parse_job_line
from shard_manager.shardctl.layout import Line
from shard_manager.shardctl.output import Json, progress_bar
from shard_manager.shardctl.text import counted, printable
from shardwheel.v1.job_pb2 import JobSpec
from shardwheel.v1.job_service_pb2 import SubmitJobsRequest, SubmitResult

# The limits of one request; the room under 4 MiB is for the frame around the jobs.
_BATCH_JOBS = 1000
_BATCH_BYTES = 4 * 1024 * 1024 - 64 * 1024
_LONGEST_LINE = 8 * 1024 * 1024
_SHOWN_ERRORS = 20
_SPOOL_BYTES = 64 * 1024 * 1024
_ITEM = re.compile(r"^jobs\[([0-9]{1,9})\]\.?(.*)$")


@dataclass(slots=True)
class _Batch:
    """Jobs with the numbers of their lines."""

    jobs: list[JobSpec] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class _Stored:
    """What has been stored so far."""

    results: list[SubmitResult] = field(default_factory=list)
    last_line: int = 0


async def submit_file(cli: Cli, path: str, defaults: JobSpec) -> None:
    """Stores the jobs of a file of JSON lines, or of stdin if `path` is `-`; prints the counts and the ids.

    Nothing is stored if a line is bad. Batches are all or nothing; when one fails, the error tells up to which line
    the jobs are stored.
    """
    with _open(path) as source:
        count = _check(path, source, defaults)
        stored = _Stored()
        async with cli.connect() as connection:
            with progress_bar() as progress:
                await _store(connection, path, source, defaults, stored, progress, count)
    created = sum(result.created for result in stored.results)
    differing = sum(result.differs for result in stored.results)
    existing = len(stored.results) - created
    data: Json = {
        "submitted": len(stored.results),
        "created": created,
        "existing": existing,
        "differing": differing,
        "job_ids": [result.job_id for result in stored.results],
    }
    text = f"{counted(created, 'job')} submitted"
    if existing:
        text += f", {existing} existed already ({differing} of them with other content)"
    cli.output.emit(data, Line(text))


async def _store(
    connection: Connection,
    path: str,
    source: IO[bytes],
    defaults: JobSpec,
    stored: _Stored,
    progress: Progress,
    count: int,
) -> None:
    task = progress.add_task("submitting", total=count)
    for batch in _batches(path, source, defaults):
        request = SubmitJobsRequest(namespace=connection.settings.namespace, jobs=batch.jobs)
        try:
            response = await connection.call(connection.jobs.SubmitJobs, request)
        except CallRefusedError as error:
            raise RefusedInputError(*_refused_lines(path, batch, error), _stored_text(stored)) from None
        except CallFailedError as error:
            raise CommandFailedError(*error.lines, *_progress_lines(stored, batch, error.maybe_done)) from None
        stored.results += response.results
        stored.last_line = batch.lines[-1]
        progress.update(task, advance=len(batch.jobs))


def _refused_lines(path: str, batch: _Batch, error: CallRefusedError) -> Iterator[str]:
    """The server's refusal with line numbers in place of positions in the batch."""
    if not error.violations:
        yield from error.lines
    for name, reason in error.violations:
        match = _ITEM.match(name)
        if match is not None and int(match[1]) < len(batch.lines):
            line, name = batch.lines[int(match[1])], match[2] or "job"
            yield f"{path}:{line}: {printable(name)}: {printable(reason)}"
        else:
            yield f"error: {printable(name)}: {printable(reason)}"


def _progress_lines(stored: _Stored, batch: _Batch, maybe_done: bool) -> Iterator[str]:
    """What is stored, and what is not known, after a batch failed."""
    if stored.last_line or not maybe_done:
        yield _stored_text(stored)
    if maybe_done:
        yield f"Whether the jobs of lines {batch.lines[0]} to {batch.lines[-1]} are stored is not known."
        yield "With a dedupe_key in each line the file can simply be submitted again."


def _stored_text(stored: _Stored) -> str:
    return f"The jobs up to line {stored.last_line} are stored." if stored.last_line else "Nothing was stored."


def _check(path: str, source: IO[bytes], defaults: JobSpec) -> int:
    """Reads the whole file and counts its jobs. Raises RefusedInputError with the bad lines."""
    errors: list[str] = []
    count = bad = 0
    for number, line in _lines(path, source):
        count += 1
        try:
            parse_job_line(line, defaults)
        except InvalidInput as error:
            bad += 1
            if bad <= _SHOWN_ERRORS:
                errors.append(f"{path}:{number}: {printable(str(error))}")
    if bad > _SHOWN_ERRORS:
        errors.append(f"… and {bad - _SHOWN_ERRORS} more")
    if bad:
        raise RefusedInputError(*errors, f"error: {counted(bad, 'bad line')}; nothing was stored")
    if count == 0:
        raise RefusedInputError(f"error: {path}: holds no jobs; write one JSON object per line")
    return count


def _batches(path: str, source: IO[bytes], defaults: JobSpec) -> Iterator[_Batch]:
    batch = _Batch()
    for number, line in _lines(path, source):
        try:
            job = parse_job_line(line, defaults)
        except InvalidInput as error:
            raise RefusedInputError(f"error: {path}:{number}: changed while it was read: {error}") from None
        size = job.ByteSize() + 8
        if batch.jobs and (len(batch.jobs) == _BATCH_JOBS or batch.size + size > _BATCH_BYTES):
            yield batch
            batch = _Batch()
        batch.jobs.append(job)
        batch.lines.append(number)
        batch.size += size
    if batch.jobs:
        yield batch


def _lines(path: str, source: IO[bytes]) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1."""
    source.seek(0)
    number = 0
    while raw := source.readline(_LONGEST_LINE + 1):
        number += 1
        if len(raw) > _LONGEST_LINE:
            raise RefusedInputError(f"error: {path}:{number}: line: longer than {_LONGEST_LINE} bytes")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            raise RefusedInputError(f"error: {path}:{number}: line: is not UTF-8: {error.reason}") from None
        if text:
            yield number, text


def _open(path: str) -> AbstractContextManager[IO[bytes]]:
    """The file, or a copy of what stdin holds: it is read twice."""
    if path != "-":
        try:
            opened = open(path, "rb")  # noqa: SIM115 - the caller closes it
        except OSError as error:
            raise RefusedInputError(f"error: --file: cannot read {path}: {error.strerror}") from None
        if opened.seekable():
            return opened
        with opened:
            return _spool(opened)
    return _spool(sys.stdin.buffer)


def _spool(stream: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(stream, spool)
    return spool
