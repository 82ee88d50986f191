"""Lists of jobs: filters, pages and their tokens."""

from collections.abc import Sequence
from typing import Final

import orjson

from server.api.convert import STATES, instant
from server.api.errors import InvalidRequest
from server.api.job_reader import JobReader
from server.api.page_token import decode_token, encode_token
from server.api.validation import (
    Problems,
    check_handler,
    check_id,
    check_instant,
    check_labels,
    check_namespace,
    check_page,
    check_states,
)
from server.domain.errors import InvalidInput
from server.domain.sharding import shard_of_id
from server.store.catalog import Catalog, Namespace
from server.store.database import Database
from server.store.jobs_list import NO_CURSOR, JobFilter, list_jobs
from server.store.jobs_read import JobRecord
from shardwheel.v1 import job_service_pb2 as pb

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000
# A page ends before its message grows larger: clients by default accept 4 MiB.
MAX_PAGE_BYTES: Final = 2 * 1024 * 1024


class JobLister:
    """Answers ListJobs."""

    def __init__(self, database: Database, partition_of: Sequence[int], catalog: Catalog, reader: JobReader) -> None:
        self._database = database
        self._partition_of = partition_of
        self._catalog = catalog
        self._reader = reader

    async def answer(self, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        """Return one page."""
        name = _checked(request)
        filters = _token_filters(name, request)
        cursor = _cursor(request.page_token, filters) if request.page_token else NO_CURSOR
        namespace = await self._catalog.namespace(name)
        wanted = await self._filter(namespace, request)
        if wanted is None:
            return pb.ListJobsResponse()
        size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        page = await list_jobs(self._database, self._partition_of, wanted, cursor, size)
        response = pb.ListJobsResponse()
        next_cursor = await self._fill(response, namespace, page.jobs) or page.next_cursor
        if next_cursor is not None:
            response.next_page_token = encode_token(next_cursor, filters)
        return response

    async def _filter(self, namespace: Namespace, request: pb.ListJobsRequest) -> JobFilter | None:
        """Return the filter of a list; None if nothing can match."""
        if shard_of_id(request.schedule_id) >= len(self._partition_of):
            # No schedule of this cluster can have the id.
            return None
        handler_id = None
        if request.handler:
            handler = await self._catalog.find_handler(namespace.namespace_id, request.handler)
            if handler is None:
                return None
            handler_id = handler.handler_id
        return JobFilter(
            namespace_id=namespace.namespace_id,
            handler_id=handler_id,
            states=frozenset(state for state, shown in STATES.items() if shown in request.states),
            labels=orjson.dumps(dict(request.labels)) if request.labels else None,
            schedule_id=request.schedule_id or None,
            created_from=instant(request.created_from) if request.HasField("created_from") else None,
            created_before=instant(request.created_before) if request.HasField("created_before") else None,
        )

    async def _fill(self, response: pb.ListJobsResponse, namespace: Namespace, jobs: list[JobRecord]) -> int | None:
        """Add jobs to a page; if they do not all fit, return the cursor after those that do."""
        size = 0
        for job in jobs:
            message = await self._reader.message(namespace, job)
            size += message.ByteSize() + 5
            if size > MAX_PAGE_BYTES and response.jobs:
                return response.jobs[-1].id
            response.jobs.append(message)
        return None


def _checked(request: pb.ListJobsRequest) -> str:
    problems = Problems()
    name = check_namespace(problems, request.namespace)
    if request.handler:
        check_handler(problems, request.handler)
    check_states(problems, "states", request.states)
    check_labels(problems, "labels", request.labels)
    if request.schedule_id:
        check_id(problems, request.schedule_id, "schedule_id")
    if request.HasField("created_from"):
        check_instant(problems, "created_from", request.created_from)
    if request.HasField("created_before"):
        check_instant(problems, "created_before", request.created_before)
    check_page(problems, request.page_size, request.page_token)
    problems.check()
    return name


def _cursor(token: str, filters: list[object]) -> int:
    cursor = decode_token(token, filters)
    if cursor is None:
        reason = "is not the next_page_token of a list with these filters"
        raise InvalidRequest([InvalidInput("page_token", token, reason)])
    return cursor


def _token_filters(namespace: str, request: pb.ListJobsRequest) -> list[object]:
    return [
        namespace,
        request.handler,
        sorted(set(request.states)),
        dict(request.labels),
        request.schedule_id,
        [request.created_from.seconds, request.created_from.nanos] if request.HasField("created_from") else None,
        [request.created_before.seconds, request.created_before.nanos] if request.HasField("created_before") else None,
    ]
