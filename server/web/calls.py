"""The application services behind the pages: what the dashboard calls, on whose behalf, and how that fails."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from server.api.errors import ApiError, InvalidRequest, api_error, internal_error
from server.web.doorkeeper import Doorkeeper
from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as job_pb
from shardwheel.v1 import schedule_service_pb2 as schedule_pb
from shardwheel.v1.activity_pb2 import Activity
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceServicer
from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.job_service_pb2_grpc import JobServiceServicer
from shardwheel.v1.schedule_pb2 import Schedule
from shardwheel.v1.schedule_service_pb2_grpc import ScheduleServiceServicer

#: Somebody looks at an empty page meanwhile.
CALL_TIMEOUT_S: Final = 10.0

_HTTP_STATUS: Final = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a call failed. `code` is the name of the gRPC status, `fields` has what is wrong with which field."""

    code: str
    message: str
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The HTTP status that says the same."""
        return _HTTP_STATUS.get(self.code, 500)


class CallFailed(Exception):
    """A call that a page cannot do without has failed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A method of a service, by its full name. Its second argument, the context of a gRPC call, is None here."""

    path: str
    behavior: Callable[[Request, Any], Awaitable[Response]]


class Services:
    """All methods that the dashboard calls."""

    def __init__(
        self, *, jobs: JobServiceServicer, schedules: ScheduleServiceServicer, admin: AdminServiceServicer
    ) -> None:
        at = "/shardwheel.v1.JobService/"
        self.list_jobs: Method[job_pb.ListJobsRequest, job_pb.ListJobsResponse] = Method(at + "ListJobs", jobs.ListJobs)
        self.get_job: Method[job_pb.GetJobRequest, Job] = Method(at + "GetJob", jobs.GetJob)
        self.retry_job: Method[job_pb.RetryJobRequest, Job] = Method(at + "RetryJob", jobs.RetryJob)
        self.cancel_job: Method[job_pb.CancelJobRequest, Job] = Method(at + "CancelJob", jobs.CancelJob)

        at = "/shardwheel.v1.ScheduleService/"
        self.list_schedules: Method[schedule_pb.ListSchedulesRequest, schedule_pb.ListSchedulesResponse] = Method(
            at + "ListSchedules", schedules.ListSchedules
        )
        self.get_schedule: Method[schedule_pb.GetScheduleRequest, Schedule] = Method(
            at + "GetSchedule", schedules.GetSchedule
        )
        self.preview_schedule: Method[schedule_pb.PreviewScheduleRequest, schedule_pb.PreviewScheduleResponse] = Method(
            at + "PreviewSchedule", schedules.PreviewSchedule
        )
        self.pause_schedule: Method[schedule_pb.PauseScheduleRequest, Schedule] = Method(
            at + "PauseSchedule", schedules.PauseSchedule
        )
        self.resume_schedule: Method[schedule_pb.ResumeScheduleRequest, Schedule] = Method(
            at + "ResumeSchedule", schedules.ResumeSchedule
        )
        self.trigger_schedule: Method[schedule_pb.TriggerScheduleRequest, schedule_pb.TriggerScheduleResponse] = Method(
            at + "TriggerSchedule", schedules.TriggerSchedule
        )

        at = "/shardwheel.v1.AdminService/"
        self.get_status: Method[admin_pb.GetStatusRequest, admin_pb.GetStatusResponse] = Method(
            at + "GetStatus", admin.GetStatus
        )
        self.get_activity: Method[admin_pb.GetActivityRequest, Activity] = Method(at + "GetActivity", admin.GetActivity)
        self.list_handlers: Method[admin_pb.ListHandlersRequest, admin_pb.ListHandlersResponse] = Method(
            at + "ListHandlers", admin.ListHandlers
        )
        self.pause_handler: Method[admin_pb.PauseHandlerRequest, admin_pb.Handler] = Method(
            at + "PauseHandler", admin.PauseHandler
        )
        self.resume_handler: Method[admin_pb.ResumeHandlerRequest, admin_pb.Handler] = Method(
            at + "ResumeHandler", admin.ResumeHandler
        )
        self.list_workers: Method[admin_pb.ListWorkersRequest, admin_pb.ListWorkersResponse] = Method(
            at + "ListWorkers", admin.ListWorkers
        )
        self.list_namespaces: Method[admin_pb.ListNamespacesRequest, admin_pb.ListNamespacesResponse] = Method(
            at + "ListNamespaces", admin.ListNamespaces
        )


class Caller:
    """Calls methods on behalf of the bearer of a token, by the rules of `doorkeeper`."""

    def __init__(self, doorkeeper: Doorkeeper, token: str) -> None:
        self._doorkeeper = doorkeeper
        self._token = token

    async def call(self, method: Method[Request, Response], request: Request) -> Response:
        """Return the answer of a method. Raises `CallFailed`."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._doorkeeper.admit(self._token, method.path, request)
                return await method.behavior(request, None)
        except TimeoutError as error:
            message = f"there was no answer within {CALL_TIMEOUT_S:g} s; try again"
            raise CallFailed(Problem(code="DEADLINE_EXCEEDED", message=message)) from error
        except Exception as error:
            raise CallFailed(problem_of(error, method.path)) from error

    async def attempt(self, method: Method[Request, Response], request: Request) -> Response | Problem:
        """Return the answer of a method, or why there is none, for pages that have other things to show as well.

        Raises `CallFailed` only if the bearer has to show a valid token first.
        """
        try:
            return await self.call(method, request)
        except CallFailed as failed:
            if failed.problem.code == "UNAUTHENTICATED":
                raise
            return failed.problem


def problem_of(error: Exception, method: str) -> Problem:
    """Return an error for people; one that was not foreseen is logged."""
    known: ApiError = api_error(error) or internal_error(error, method)
    fields: dict[str, str] = {}
    if isinstance(known, InvalidRequest):
        fields = {one.field: one.reason for one in known.violations}
    return Problem(code=known.code.name, message=known.message, fields=fields)
