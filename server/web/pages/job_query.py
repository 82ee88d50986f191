"""The filters of the list of jobs: from the address of the page to a request, and back. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from server.api.convert import timestamp
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2 import ListJobsRequest

PAGE_SIZE: Final = 50
STATES: Final = ("pending", "running", "completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """What the visitor has asked for, as it was written; instants are in UTC."""

    handler: str = ""
    states: Sequence[str] = ()
    labels: str = ""
    schedule: str = ""
    created_from: str = ""
    created_before: str = ""
    page: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    """What is wrong, by field."""

    @property
    def filtered(self) -> bool:
        """Whether anything is asked for but all jobs."""
        return any((self.handler, self.states, self.labels, self.schedule, self.created_from, self.created_before))

    def address(self, *, page: str = "") -> str:
        """Return the query part of the address that asks for the same, with another page."""
        fields = [
            ("handler", self.handler),
            *(("state", state) for state in self.states),
            ("labels", self.labels),
            ("schedule", self.schedule),
            ("from", self.created_from),
            ("before", self.created_before),
            ("page", page),
        ]
        return urlencode([(name, value) for name, value in fields if value])


def parse_query(items: Sequence[tuple[str, str]]) -> JobQuery:
    """Return the filters that an address holds. What is not understood is noted as an error of its field."""
    values = {name: value.strip() for name, value in items}
    states = [value for name, value in items if name == "state" and value]
    errors = {}
    if unknown := [state for state in states if state not in STATES]:
        errors["state"] = f"there is no state {unknown[0][:40]!r}"
    for name in ("from", "before"):
        if values.get(name) and _instant(values[name]) is None:
            errors[name] = "takes a date and a time, as in 2026-03-01T12:00"
    if _labels(values.get("labels", "")) is None:
        errors["labels"] = "takes labels as in: team=billing tier=gold"
    return JobQuery(
        handler=values.get("handler", ""),
        states=[state for state in STATES if state in states],
        labels=values.get("labels", ""),
        schedule=values.get("schedule", ""),
        created_from=values.get("from", ""),
        created_before=values.get("before", ""),
        page=values.get("page", ""),
        errors=errors,
    )


def request_of(query: JobQuery, namespace: str, schedule_id: int) -> ListJobsRequest:
    """Return the request for a page of jobs. Filters with errors are left out."""
    created_from, created_before = _instant(query.created_from), _instant(query.created_before)
    return ListJobsRequest(
        namespace=namespace,
        handler=query.handler,
        states=[Job.State.Value(state.upper()) for state in query.states],
        labels=_labels(query.labels) or {},
        schedule_id=schedule_id,
        created_from=timestamp(created_from) if created_from else None,
        created_before=timestamp(created_before) if created_before else None,
        page_size=PAGE_SIZE,
        page_token=query.page,
    )


def _instant(text: str) -> datetime | None:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _labels(text: str) -> Mapping[str, str] | None:
    labels = {}
    for part in text.split():
        key, equals, value = part.partition("=")
        if not key or not equals:
            return None
        labels[key] = value
    return labels
