"""The part of the asyncio client that is about schedules."""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime

from google.protobuf.field_mask_pb2 import FieldMask

from shardwheel.v1 import schedule_service_pb2
from worker_sdk.codec import Codec
from worker_sdk.job_conversion import instant_from_proto, instant_to_proto, job_from_proto
from worker_sdk.jobs import Job
from worker_sdk.schedule_conversion import ensured_from_proto, schedule_from_proto, schedule_spec
from worker_sdk.schedules import EnsuredSchedule, NewSchedule, Schedule, SchedulePreview
from worker_sdk.transport import Transport


class ScheduleCalls:
    """Defines and steers schedules."""

    def __init__(self, transport: Transport, codec: Codec) -> None:
        """Call through `transport`, encoding payloads with `codec`."""
        self._transport = transport
        self._codec = codec
        self._namespace = transport.connection.namespace

    async def create_schedule(self, schedule: NewSchedule, *, paused: bool = False) -> Schedule:
        """Create a schedule; the same definition again returns the schedule as it is.

        Raises `AlreadyExists` if the name is taken by another definition.
        """
        request = schedule_service_pb2.CreateScheduleRequest(
            namespace=self._namespace,
            name=schedule.name,
            spec=schedule_spec(schedule, self._codec),
            paused=paused,
        )
        return schedule_from_proto(
            await self._transport.unary(lambda stubs: stubs.schedules.CreateSchedule, request, repeatable=True)
        )

    async def ensure_schedules(
        self, schedules: Iterable[NewSchedule], *, prune_prefix: str = "", dry_run: bool = False
    ) -> list[EnsuredSchedule]:
        """Create, or update by name, up to 1000 schedules: all or none. Unchanged ones keep their next firing.

        With `prune_prefix`, schedules whose name starts with it and that are not among them are deleted.
        """
        request = schedule_service_pb2.EnsureSchedulesRequest(
            namespace=self._namespace,
            schedules=[
                schedule_service_pb2.NamedScheduleSpec(name=item.name, spec=schedule_spec(item, self._codec))
                for item in schedules
            ],
            prune_prefix=prune_prefix,
            dry_run=dry_run,
        )
        response = await self._transport.unary(lambda stubs: stubs.schedules.EnsureSchedules, request, repeatable=True)
        return [ensured_from_proto(result) for result in response.results]

    async def get_schedule(self, name: str) -> Schedule:
        """Return a schedule. Raises `NotFound`."""
        request = schedule_service_pb2.GetScheduleRequest(namespace=self._namespace, name=name)
        return schedule_from_proto(
            await self._transport.unary(lambda stubs: stubs.schedules.GetSchedule, request, repeatable=True)
        )

    async def list_schedules(
        self, *, name_prefix: str = "", handler: str = "", page_size: int = 0
    ) -> AsyncIterator[Schedule]:
        """Yield the schedules that match all filters, by name."""
        request = schedule_service_pb2.ListSchedulesRequest(
            namespace=self._namespace, name_prefix=name_prefix, handler=handler, page_size=page_size
        )
        while True:
            page = await self._transport.unary(lambda stubs: stubs.schedules.ListSchedules, request, repeatable=True)
            for message in page.schedules:
                yield schedule_from_proto(message)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def update_schedule(self, schedule: NewSchedule, *, fields: Sequence[str] = (), etag: str = "") -> Schedule:
        """Change the definition of the schedule with that name. An unchanged timing keeps its next firing.

        `fields` names what to change, as paths of the wire form, for example "cron", "job.payload" or "overlap"; none
        means all. With `etag` (of a `Schedule`), `Aborted` is raised if someone else changed it meanwhile.
        """
        request = schedule_service_pb2.UpdateScheduleRequest(
            namespace=self._namespace,
            name=schedule.name,
            spec=schedule_spec(schedule, self._codec),
            update_mask=FieldMask(paths=fields),
            etag=etag,
        )
        return schedule_from_proto(
            await self._transport.unary(lambda stubs: stubs.schedules.UpdateSchedule, request, repeatable=not etag)
        )

    async def pause_schedule(self, name: str, *, note: str = "") -> Schedule:
        """Stop a schedule from firing. After the answer no new job is made until it is resumed."""
        request = schedule_service_pb2.PauseScheduleRequest(namespace=self._namespace, name=name, note=note)
        return schedule_from_proto(
            await self._transport.unary(lambda stubs: stubs.schedules.PauseSchedule, request, repeatable=True)
        )

    async def resume_schedule(self, name: str) -> Schedule:
        """Let a paused schedule fire again; its catch-up policy decides about firings missed in between."""
        request = schedule_service_pb2.ResumeScheduleRequest(namespace=self._namespace, name=name)
        return schedule_from_proto(
            await self._transport.unary(lambda stubs: stubs.schedules.ResumeSchedule, request, repeatable=True)
        )

    async def trigger_schedule(self, name: str) -> Job:
        """Make a job of the schedule now, paused or not, outside the overlap policy, and return it."""
        request = schedule_service_pb2.TriggerScheduleRequest(namespace=self._namespace, name=name)
        response = await self._transport.unary(lambda stubs: stubs.schedules.TriggerSchedule, request, repeatable=False)
        return job_from_proto(response.job)

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Jobs it made stay."""
        request = schedule_service_pb2.DeleteScheduleRequest(namespace=self._namespace, name=name)
        await self._transport.unary(lambda stubs: stubs.schedules.DeleteSchedule, request, repeatable=False)

    async def preview_schedule(
        self, schedule: NewSchedule, *, after: datetime | None = None, count: int = 0
    ) -> SchedulePreview:
        """Compute the next `count` (5 by default) firings of a definition after `after` (now by default)."""
        request = schedule_service_pb2.PreviewScheduleRequest(spec=schedule_spec(schedule, self._codec), count=count)
        if after is not None:
            request.after.CopyFrom(instant_to_proto(after, "after"))
        response = await self._transport.unary(lambda stubs: stubs.schedules.PreviewSchedule, request, repeatable=True)
        return SchedulePreview(
            firings=tuple(instant_from_proto(firing) for firing in response.firings),
            description=response.description,
            notes=tuple(response.notes),
        )
