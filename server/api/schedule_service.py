"""ScheduleService: defining and steering schedules.

The policies of a schedule's jobs are resolved when it is created or changed, as those of a job are at submit, and
stored with it; the definition as it was asked for is kept beside them, for showing it and for telling whether a new one
differs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

import grpc

from server.api.convert import job_message
from server.api.errors import Aborted, AlreadyExists, ApiError, InvalidRequest, NotFound, WrongState
from server.api.new_jobs import JobFactory
from server.api.quota_keeper import QuotaKeeper
from server.api.schedule_convert import CheckedSpec, check_spec, etag_of, schedule_message, spec_message
from server.api.schedule_ensure import Ensuring, check_ensure, response_of, unregistered
from server.api.schedule_mask import check_mask, merged
from server.api.schedule_page import ScheduleFilter, page_size
from server.api.schedule_preview import preview
from server.api.validation import Limits, Problems, check_handler, check_namespace, check_note, check_schedule_name
from server.domain.due import DueJob
from server.domain.errors import InvalidInput
from server.domain.policies import SERVER_DEFAULTS, Policies
from server.domain.schedule_change import Creation, Revision, ScheduleChange, Unchanged, create, redefine, resume
from server.domain.sharding import shard_of_id
from server.domain.stored_schedule import StoredSchedule
from server.store.catalog import Catalog, Handler, Namespace
from server.store.database import Database
from server.store.errors import UnknownOutcome
from server.store.insert import IdBlock
from server.store.jobs_read import read_job
from server.store.schedule_changes import MAX_PRUNED, Decide, ScheduleChanges, TooManyPruned
from server.store.schedules import ScheduleStore
from shardwheel.v1 import schedule_service_pb2 as messages
from shardwheel.v1.schedule_pb2 import Schedule
from shardwheel.v1.schedule_service_pb2_grpc import ScheduleServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]

# A page of a list ends where it has so many bytes, so that any client can receive it.
MAX_PAGE_BYTES: Final = 2 << 20
_ROWS_AT_ONCE: Final = 25
# How often an update is computed again if the schedule changes meanwhile.
_ROUNDS: Final = 10


class TriggerOutcomeUnknown(ApiError):
    """The job of a trigger may have been made or not."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__(
            "OUTCOME_UNKNOWN",
            "the connection to the database broke during the commit; look at the schedule's jobs before you repeat it",
            {"repeat_is_safe": "false"},
        )


class _ChangedMeanwhile(Exception):
    """The schedule is not the one any more from which a change was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleNudges:
    """Whom to tell of commits: `changed` that a schedule of a shard fires next at a time, `jobs_added` of new jobs."""

    changed: Callable[[int, datetime | None], None]
    jobs_added: Callable[[Sequence[DueJob]], None]


class ScheduleService(ScheduleServiceServicer):
    """Serves ScheduleService from one node. `now` is an estimate of the database's clock, used in previews only."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        ids: IdBlock,
        partition_of: Sequence[int],
        nudges: ScheduleNudges,
        now: Callable[[], datetime],
        quotas: QuotaKeeper | None = None,
        limits: Limits | None = None,
        policies: Policies = SERVER_DEFAULTS,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._partition_of = partition_of
        self._nudges = nudges
        self._now = now
        self._quotas = quotas
        self._limits = limits or Limits()
        self._policies = policies
        self._store = ScheduleStore(database, ids, partition_of)
        self._changes = ScheduleChanges(database, ids, partition_of)

    async def CreateSchedule(self, request: messages.CreateScheduleRequest, context: Context) -> Schedule:
        """Create a schedule, or return the existing one if it has the same definition."""
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        check_schedule_name(problems, request.name)
        checked = check_spec(problems, "spec", request.name, request.spec, self._limits, self._now())
        problems.check()
        assert checked is not None
        namespace = await self._catalog.namespace(name)
        await self._admit(namespace, [request.name])
        draft = checked.draft(await self._jobs(namespace, [checked]))

        def decide(now: datetime, existing: Mapping[str, StoredSchedule]) -> list[ScheduleChange]:
            stored = existing.get(draft.name)
            if stored is None:
                return [create(draft, now, paused=request.paused)]
            if stored.definition.asks_the_same_as(draft.settled(stored.created_at)):
                return [Unchanged(stored=stored)]
            raise AlreadyExists(
                "SCHEDULE_EXISTS",
                f"schedule {draft.name!r} exists with another definition; change it with UpdateSchedule",
                {"namespace": name, "schedule": draft.name},
            )

        return await self._change(namespace, draft.name, len(draft.definition.job.payload), decide)

    async def GetSchedule(self, request: messages.GetScheduleRequest, context: Context) -> Schedule:
        """Return a schedule."""
        namespace = await self._addressed(request.namespace, request.name)
        return schedule_message(await self._existing(namespace, request.name), namespace.name)

    async def ListSchedules(
        self, request: messages.ListSchedulesRequest, context: Context
    ) -> messages.ListSchedulesResponse:
        """Return a page of schedules, by name."""
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        if request.name_prefix:
            check_schedule_name(problems, request.name_prefix, "name_prefix")
        if request.handler:
            check_handler(problems, request.handler)
        size = page_size(problems, request.page_size)
        shown = ScheduleFilter(name, request.name_prefix, request.handler)
        after = shown.read_token(problems, request.page_token)
        problems.check()
        namespace = await self._catalog.namespace(name)
        handler = None
        if request.handler:
            handler = await self._catalog.find_handler(namespace.namespace_id, request.handler)
            if handler is None:
                return messages.ListSchedulesResponse()
        return await self._page(namespace, shown, handler, after, size)

    async def UpdateSchedule(self, request: messages.UpdateScheduleRequest, context: Context) -> Schedule:
        """Change the fields of the definition that the mask names."""
        paths = request.update_mask.paths
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        check_schedule_name(problems, request.name)
        check_mask(problems, "update_mask", paths)
        if not request.HasField("spec") and not paths:
            problems.add("spec", "", "is required")
        problems.check()
        namespace = await self._catalog.namespace(name)
        for _ in range(_ROUNDS):
            stored = await self._existing(namespace, request.name)
            if request.etag and request.etag != etag_of(stored):
                raise Aborted(
                    "ETAG_MISMATCH",
                    f"schedule {request.name!r} was changed by someone else; get it and update again",
                    {"namespace": name, "schedule": request.name, "etag": etag_of(stored)},
                )
            problems = Problems()
            spec = merged(spec_message(stored.definition), request.spec, paths)
            checked = check_spec(problems, "spec", request.name, spec, self._limits, self._now())
            problems.check()
            assert checked is not None
            try:
                return await self._redefine(namespace, stored, checked)
            except _ChangedMeanwhile:
                continue
        raise Aborted(
            "CONTENTION",
            f"schedule {request.name!r} is being changed all the time; try again",
            {"namespace": name, "schedule": request.name},
        )

    async def EnsureSchedules(
        self, request: messages.EnsureSchedulesRequest, context: Context
    ) -> messages.EnsureSchedulesResponse:
        """Create, change or leave alone many schedules, all or none."""
        problems = Problems()
        name = check_namespace(problems, request.namespace)
        checked = check_ensure(problems, request, self._limits, self._now())
        problems.check()
        namespace = await self._catalog.namespace(name)
        await self._admit(namespace, [one.name for one in request.schedules])
        jobs = await self._jobs(namespace, checked, create_handlers=not request.dry_run)
        paused = [named.name for named in request.schedules if named.paused]
        ensuring = Ensuring(checked, jobs, prune=bool(request.prune_prefix), paused=paused)
        arguments = (ensuring.names, ensuring.decide)
        number, prefix = namespace.namespace_id, request.prune_prefix
        try:
            if request.dry_run:
                return response_of(await self._changes.dry_run(number, *arguments, prune_prefix=prefix))
            changed = await self._changes.change(number, name, *arguments, prune_prefix=prefix)
        except TooManyPruned as error:
            advice = f"at most {MAX_PRUNED} can be deleted at once; choose a longer prefix"
            raise WrongState("TOO_MANY_TO_PRUNE", f"{error}: {advice}", {"prune_prefix": prefix}) from error
        self._tell(changed)
        return response_of([change for change, _ in changed])

    async def DeleteSchedule(
        self, request: messages.DeleteScheduleRequest, context: Context
    ) -> messages.DeleteScheduleResponse:
        """Delete a schedule; jobs that it made stay."""
        namespace = await self._addressed(request.namespace, request.name)
        if not await self._store.delete(namespace.namespace_id, request.name):
            raise _not_found(namespace, request.name)
        return messages.DeleteScheduleResponse()

    async def PauseSchedule(self, request: messages.PauseScheduleRequest, context: Context) -> Schedule:
        """Stop a schedule from firing: no job is made after the answer."""
        problems = Problems()
        check_note(problems, "note", request.note)
        namespace = await self._addressed(request.namespace, request.name, problems)
        stored = await self._store.pause(namespace.namespace_id, request.name, request.note)
        if stored is None:
            raise _not_found(namespace, request.name)
        return schedule_message(stored, namespace.name)

    async def ResumeSchedule(self, request: messages.ResumeScheduleRequest, context: Context) -> Schedule:
        """Let a paused schedule fire again."""
        namespace = await self._addressed(request.namespace, request.name)

        def decide(now: datetime, existing: Mapping[str, StoredSchedule]) -> list[ScheduleChange]:
            if request.name not in existing:
                raise _not_found(namespace, request.name)
            return [resume(existing[request.name], now)]

        return await self._change(namespace, request.name, None, decide)

    async def TriggerSchedule(
        self, request: messages.TriggerScheduleRequest, context: Context
    ) -> messages.TriggerScheduleResponse:
        """Make a job now."""
        namespace = await self._addressed(request.namespace, request.name)
        if self._quotas is not None:
            await self._quotas.admit_jobs(namespace, 1, 0)
        try:
            job = await self._store.trigger(namespace.namespace_id, request.name)
        except UnknownOutcome as error:
            raise TriggerOutcomeUnknown from error
        if job is None:
            raise _not_found(namespace, request.name)
        self._nudges.jobs_added([job])
        partition = self._partition_of[job.shard]
        view = await read_job(self._database, partition, namespace.namespace_id, job.job_id)
        handler = await self._catalog.handler_by_id(job.handler_id)
        assert view is not None
        assert handler is not None
        return messages.TriggerScheduleResponse(job=job_message(view.job, namespace.name, handler.name))

    async def PreviewSchedule(
        self, request: messages.PreviewScheduleRequest, context: Context
    ) -> messages.PreviewScheduleResponse:
        """Compute coming firings of a definition without storing it."""
        return await preview(request, self._now())

    async def _admit(self, namespace: Namespace, names: Sequence[str]) -> None:
        if self._quotas is not None:
            await self._quotas.admit_schedules(namespace, names)

    async def _addressed(self, namespace: str, name: str, problems: Problems | None = None) -> Namespace:
        """Check the address of a schedule (with what else is wrong) and return its namespace."""
        problems = problems or Problems()
        checked = check_namespace(problems, namespace)
        check_schedule_name(problems, name)
        problems.check()
        return await self._catalog.namespace(checked)

    async def _existing(self, namespace: Namespace, name: str) -> StoredSchedule:
        stored = await self._store.get(namespace.namespace_id, name)
        if stored is None:
            raise _not_found(namespace, name)
        return stored

    async def _page(
        self, namespace: Namespace, shown: ScheduleFilter, handler: Handler | None, after: str, size: int
    ) -> messages.ListSchedulesResponse:
        response = messages.ListSchedulesResponse()
        room, more = MAX_PAGE_BYTES, True
        while more and len(response.schedules) < size:
            found, more = await self._store.page(
                namespace.namespace_id,
                prefix=shown.prefix,
                handler_id=None if handler is None else handler.handler_id,
                after=after,
                limit=min(_ROWS_AT_ONCE, size - len(response.schedules)),
            )
            for stored in found:
                message = schedule_message(stored, namespace.name)
                room -= message.ByteSize()
                if room < 0 and response.schedules:
                    response.next_page_token = shown.token(after)
                    return response
                response.schedules.append(message)
                after = stored.name
        if more:
            response.next_page_token = shown.token(after)
        return response

    async def _jobs(
        self, namespace: Namespace, checked: Sequence[CheckedSpec], *, create_handlers: bool = True
    ) -> JobFactory:
        """Return a factory that knows the handlers of these specs, creating them or only looking for them."""
        number, names = namespace.namespace_id, sorted({spec.job.handler for spec in checked})
        if create_handlers:
            handlers = await self._catalog.handlers_named(number, names)
        else:
            handlers = {
                name: await self._catalog.find_handler(number, name) or unregistered(number, name) for name in names
            }
        return JobFactory(namespace, handlers, self._policies)

    async def _redefine(self, namespace: Namespace, stored: StoredSchedule, checked: CheckedSpec) -> Schedule:
        draft = checked.draft(await self._jobs(namespace, [checked]))

        def decide(now: datetime, existing: Mapping[str, StoredSchedule]) -> list[ScheduleChange]:
            current = existing.get(stored.name)
            if current is None or etag_of(current) != etag_of(stored):
                raise _ChangedMeanwhile
            try:
                return [redefine(current, draft, now, resolve_again=True)]
            except InvalidInput as error:
                refused = InvalidInput(f"spec.{error.field}", error.value, error.reason)
                raise InvalidRequest([refused]) from error

        return await self._change(namespace, stored.name, len(draft.definition.job.payload), decide)

    async def _change(self, namespace: Namespace, name: str, size: int | None, decide: Decide) -> Schedule:
        """Change one schedule and return it; `size` is that of the new payload, None if it stays."""
        changed = await self._changes.change(namespace.namespace_id, namespace.name, {name: size}, decide)
        self._tell(changed)
        found = await self._store.read([schedule_id for _, schedule_id in changed])
        if not found:
            raise _not_found(namespace, name)
        return schedule_message(found[0], namespace.name)

    def _tell(self, changed: Sequence[tuple[ScheduleChange, int]]) -> None:
        for change, schedule_id in changed:
            if isinstance(change, Creation | Revision) and not change.paused:
                self._nudges.changed(shard_of_id(schedule_id), change.next_fire_at)


def _not_found(namespace: Namespace, name: str) -> NotFound:
    return NotFound(
        "SCHEDULE_NOT_FOUND",
        f"namespace {namespace.name!r} has no schedule {name!r}",
        {"namespace": namespace.name, "schedule": name},
    )
