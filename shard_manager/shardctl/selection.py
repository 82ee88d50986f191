"""Options that select many jobs. No options select nothing: whoever means all jobs has to say so."""

from dataclasses import dataclass
from typing import Annotated

import typer

from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.option_types import parse_labels
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import ListJobsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filters that all have to match."""

    handler: Annotated[str | None, typer.Option(metavar="NAME", help="All jobs of this handler.")] = None
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="All with this label. May be repeated.")
    ] = None
    all_jobs: Annotated[bool, typer.Option("--all", help="All jobs of the namespace.")] = False

    def request(self, namespace: str, job_id: int | None, states: list[Job.State.ValueType]) -> ListJobsRequest | None:
        """Return the list of what is selected, None if `job_id` alone is meant.

        Raises RefusedInputError if nothing is selected, or more than one thing.
        """
        labels = parse_labels(self.label)
        filtered = bool(self.handler or labels)
        if job_id is not None and not filtered and not self.all_jobs:
            return None
        if job_id is not None or (filtered and self.all_jobs):
            raise RefusedInputError("error: give an ID, or filters, or --all: one of them")
        if not filtered and not self.all_jobs:
            raise RefusedInputError(
                "error: no job is selected: give an ID, or --handler or --label; --all means every job of the namespace"
            )
        return ListJobsRequest(namespace=namespace, handler=self.handler or "", states=states, labels=labels)
