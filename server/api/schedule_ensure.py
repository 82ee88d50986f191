"""EnsureSchedules: many definitions by name, created, changed or left alone, all or none."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from server.api.convert import timestamp
from server.api.errors import InvalidRequest
from server.api.new_jobs import JobFactory
from server.api.schedule_convert import CheckedSpec, check_spec
from server.api.validation import Limits, Problems, check_schedule_name
from server.domain.errors import InvalidInput
from server.domain.schedule_change import Creation, Removal, Revision, ScheduleChange, create, redefine
from server.domain.stored_schedule import ScheduleDraft, StoredSchedule
from server.store.catalog import Handler
from shardwheel.v1.schedule_service_pb2 import EnsureSchedulesRequest, EnsureSchedulesResponse

MAX_SCHEDULES: Final = 1000


def check_ensure(
    problems: Problems, request: EnsureSchedulesRequest, limits: Limits, now: datetime
) -> list[CheckedSpec]:
    """Check a request, every schedule of it; what is returned is complete only if nothing was wrong."""
    if request.prune_prefix:
        check_schedule_name(problems, request.prune_prefix, "prune_prefix")
    elif not request.schedules:
        problems.add("schedules", "no schedules", f"takes 1 to {MAX_SCHEDULES}")
    if len(request.schedules) > MAX_SCHEDULES:
        problems.add("schedules", f"{len(request.schedules)} schedules", f"takes at most {MAX_SCHEDULES}; split them")
        return []
    checked: list[CheckedSpec] = []
    first: dict[str, int] = {}
    for index, named in enumerate(request.schedules):
        path = f"schedules[{index}]"
        check_schedule_name(problems, named.name, f"{path}.name")
        if (earlier := first.setdefault(named.name, index)) != index:
            problems.add(f"{path}.name", named.name, f"is the name of schedules[{earlier}] already")
        found = check_spec(problems, f"{path}.spec", named.name, named.spec, limits, now)
        if found is not None:
            checked.append(found)
    return checked


class Ensuring:
    """Decides about the schedules of one request. `changes` has one decision for each, then the removals."""

    def __init__(
        self, checked: Sequence[CheckedSpec], jobs: JobFactory, *, prune: bool, paused: Collection[str] = ()
    ) -> None:
        """`paused` are the names of those that are to start paused, if they are created."""
        self._drafts: list[ScheduleDraft] = [spec.draft(jobs) for spec in checked]
        self._prune = prune
        self._paused = frozenset(paused)

    @property
    def names(self) -> dict[str, int | None]:
        """The names of the request, with the sizes of the payloads."""
        return {draft.name: len(draft.definition.job.payload) for draft in self._drafts}

    def decide(self, now: datetime, existing: Mapping[str, StoredSchedule]) -> list[ScheduleChange]:
        """Return what is to become of each schedule. Raise InvalidRequest naming all that cannot be changed so."""
        refused: list[InvalidInput] = []
        changes: list[ScheduleChange] = []
        for index, draft in enumerate(self._drafts):
            stored = existing.get(draft.name)
            try:
                if stored is None:
                    changes.append(create(draft, now, paused=draft.name in self._paused))
                else:
                    changes.append(redefine(stored, draft, now))
            except InvalidInput as error:
                refused.append(InvalidInput(f"schedules[{index}].spec.{error.field}", error.value, error.reason))
        if refused:
            raise InvalidRequest(refused)
        if self._prune:
            named = set(self.names)
            changes += [Removal(stored=stored) for name, stored in sorted(existing.items()) if name not in named]
        return changes


def response_of(changes: Sequence[ScheduleChange]) -> EnsureSchedulesResponse:
    """Return the answer that tells what became of each schedule."""
    response = EnsureSchedulesResponse()
    for change in changes:
        match change:
            case Creation():
                name, kind, following = change.name, EnsureSchedulesResponse.CREATED, change.next_fire_at
            case Revision():
                name, kind, following = change.stored.name, EnsureSchedulesResponse.UPDATED, change.next_fire_at
            case Removal():
                name, kind, following = change.stored.name, EnsureSchedulesResponse.DELETED, None
            case _:
                name, kind = change.stored.name, EnsureSchedulesResponse.UNCHANGED
                following = change.stored.next_fire_at
        result = response.results.add(name=name, change=kind)
        if following is not None:
            result.next_fire_at.CopyFrom(timestamp(following))
    return response


def unregistered(namespace_id: int, name: str) -> Handler:
    """Return a stand-in for a handler that does not exist yet, for computing without storing."""
    return Handler(handler_id=0, namespace_id=namespace_id, name=name, changed_at=datetime(2000, 1, 1, tzinfo=UTC))
