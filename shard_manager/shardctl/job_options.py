"""Options that describe a job: the same for a submit and for the jobs of a schedule."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from shard_manager.shardctl.option_types import COUNT, DURATION, parse_labels
from shard_manager.shardctl.payload import Payload, read_payload
from shardwheel.v1.job_pb2 import JobSpec

PayloadArgument = Annotated[
    str | None,
    typer.Argument(metavar="PAYLOAD", help="Input of the handler, as text; - reads it from stdin.", show_default=False),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What is not given is left to the handler's registration, the namespace and the server."""

    payload_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the payload from a file.")] = None
    content_type: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="Media type. [default: application/json if the payload is JSON]"),
    ] = None
    job_name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Name for people.")] = None
    priority: Annotated[int | None, typer.Option(**COUNT, help="1 to 5, 1 is the most urgent. [default: 3]")] = None
    concurrency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Jobs of one key run one at a time, or --concurrency-limit.")
    ] = None
    concurrency_limit: Annotated[int | None, typer.Option(**COUNT, help="Limit of the key. [default: 1]")] = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label. May be repeated.")
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option(**COUNT, help="Tries in all, the first one included. [default: 4]")
    ] = None
    retry_delay: Annotated[
        timedelta | None, typer.Option(**DURATION, help="Upper bound of the first delay. [default: 1s]")
    ] = None
    retry_max_delay: Annotated[timedelta | None, typer.Option(**DURATION, help="Cap of it. [default: 1h]")] = None
    attempt_timeout: Annotated[timedelta | None, typer.Option(**DURATION, help="Limit of each attempt.")] = None
    start_timeout: Annotated[timedelta | None, typer.Option(**DURATION, help="Limit until the first attempt.")] = None
    total_timeout: Annotated[timedelta | None, typer.Option(**DURATION, help="Limit of all tries together.")] = None

    def read_payload(self, argument: str | None) -> Payload | None:
        """The payload of the argument or of --payload-file. Raises RefusedInputError."""
        return read_payload(argument, self.payload_file, self.content_type)

    def apply(self, job: JobSpec) -> list[str]:
        """Sets what was given, but for the payload, and returns the paths that were set, relative to the job."""
        paths = self._apply_plain(job)
        if self.label is not None:
            job.labels.clear()
            job.labels.update(parse_labels(self.label))
            paths.append("labels")
        return paths + self._apply_retry(job) + self._apply_timeouts(job)

    def _apply_plain(self, job: JobSpec) -> list[str]:
        given = {
            "name": self.job_name,
            "content_type": self.content_type,
            "priority": self.priority,
            "concurrency_key": self.concurrency_key,
            "concurrency_limit": self.concurrency_limit,
        }
        paths = [path for path, value in given.items() if value is not None]
        for path in paths:
            setattr(job, path, given[path])
        return paths

    def _apply_retry(self, job: JobSpec) -> list[str]:
        if self.max_attempts is not None:
            job.retry.max_attempts = self.max_attempts
        if self.retry_delay is not None:
            job.retry.initial_delay.FromTimedelta(self.retry_delay)
        if self.retry_max_delay is not None:
            job.retry.max_delay.FromTimedelta(self.retry_max_delay)
        return ["retry"] if (self.max_attempts, self.retry_delay, self.retry_max_delay) != (None, None, None) else []

    def _apply_timeouts(self, job: JobSpec) -> list[str]:
        given = {
            "attempt_timeout": self.attempt_timeout,
            "start_timeout": self.start_timeout,
            "total_timeout": self.total_timeout,
        }
        for name, limit in given.items():
            if limit is not None:
                getattr(job.timeouts, name).FromTimedelta(limit)
        return ["timeouts"] if any(limit is not None for limit in given.values()) else []
