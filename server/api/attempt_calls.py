"""The calls of workers that take jobs from Kafka: starting attempts, and finishing them."""

from collections.abc import Sequence
from typing import Final

from server.api import session_convert as convert
from server.api.caller import CALLER
from server.api.errors import WrongState
from server.api.validation import Problems, check_id, check_namespace, check_text
from server.domain.job import ClaimedJob
from server.domain.starting import Started
from server.engine.engine import Engine
from server.engine.finish_call import FinishCall
from server.engine.ports import StoreUnavailable
from server.store import workers
from server.store.catalog import Catalog
from server.store.database import Database
from server.store.start import start
from shardwheel.v1 import worker_service_pb2 as pb

MAX_STARTS: Final = 1000
# An answer with so many payloads of the largest size is below what clients take.
MAX_PAYLOADS: Final = 8
MAX_FINISHES: Final = 2000
MAX_PROGRESS_BYTES: Final = 16_384
# A call without a deadline is given one; an answer takes its time to travel.
FINISH_S: Final = 30.0
ANSWER_MARGIN_S: Final = 0.2
# Workers whose numbers are remembered.
_MAX_KNOWN: Final = 10_000


class AttemptCalls:
    """Answers StartAttempts and FinishAttempts."""

    def __init__(self, *, engine: Engine, database: Database, catalog: Catalog, max_result_bytes: int) -> None:
        self._engine = engine
        self._database = database
        self._catalog = catalog
        self._max_result_bytes = max_result_bytes
        self._known: dict[tuple[int, str, int, str], int] = {}

    async def start(self, request: pb.StartAttemptsRequest) -> pb.StartAttemptsResponse:
        """Give published attempts to a worker whose lease runs."""
        problems = Problems()
        _check_count(problems, "attempts", len(request.attempts), MAX_STARTS)
        for number, one in enumerate(request.attempts):
            _check_ref(problems, f"attempts[{number}].attempt", one.attempt)
        with_payload = sum(one.with_payload for one in request.attempts)
        if with_payload > MAX_PAYLOADS:
            problems.add("attempts", with_payload, f"ask for at most {MAX_PAYLOADS} payloads in one call")
        namespace = _check_worker(problems, request.namespace, request.worker, request.incarnation)
        problems.check()
        namespace_id = (await self._catalog.namespace(namespace)).namespace_id
        wanted = [(convert.ref_of(one.attempt), one.with_payload) for one in request.attempts]
        identity = CALLER.get().name
        started = await start(self._database, namespace_id, request.worker, request.incarnation, wanted, identity)
        if started is None:
            raise _without_lease(request.worker, request.incarnation)
        self._engine.attempts_started(started)
        names = await self._handler_names(started.jobs)
        return pb.StartAttemptsResponse(started=_assignments(started, names))

    async def finish(self, request: pb.FinishAttemptsRequest, time_left_s: float | None) -> pb.FinishAttemptsResponse:
        """Store outcomes, and answer when all are stored or refused."""
        problems = Problems()
        _check_count(problems, "results", len(request.results), MAX_FINISHES)
        for number, one in enumerate(request.results):
            _check_ref(problems, f"results[{number}].attempt", one.attempt)
        for number, progress in enumerate(request.progress):
            _check_ref(problems, f"progress[{number}].attempt", progress.attempt)
            if len(progress.data) > MAX_PROGRESS_BYTES:
                reason = f"takes at most {MAX_PROGRESS_BYTES} bytes"
                problems.add(f"progress[{number}].data", f"{len(progress.data)} bytes", reason)
        namespace = _check_worker(problems, request.namespace, request.worker, request.incarnation)
        problems.check()
        worker_id = await self._worker_id(namespace, request.worker, request.incarnation)
        limit = self._max_result_bytes
        if request.progress:
            await self._engine.progress(
                worker_id, [(convert.ref_of(one.attempt), one.data) for one in request.progress]
            )
        results = [(convert.ref_of(one.attempt), convert.outcome_of(one, limit)) for one in request.results]
        call = FinishCall(worker_id, (ref for ref, _ in results))
        self._engine.results(call, results)
        wait_s = FINISH_S if time_left_s is None else min(FINISH_S, time_left_s - ANSWER_MARGIN_S)
        if not await call.wait(max(0.0, wait_s)):
            raise StoreUnavailable("results could not be stored in time; send them again, to any node")
        return pb.FinishAttemptsResponse(acks=convert.result_acks(list(call.acks.items())).acks)

    async def _worker_id(self, namespace: str, worker: str, incarnation: int) -> int:
        """Return the number of an incarnation, also of one that has ended: its results may still be welcome."""
        namespace_id = (await self._catalog.namespace(namespace)).namespace_id
        key = (namespace_id, worker, incarnation, CALLER.get().name)
        known = self._known.get(key)
        if known is None:
            known = await workers.find(self._database, *key)
            if known is None:
                raise _without_lease(worker, incarnation)
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    async def _handler_names(self, jobs: Sequence[ClaimedJob]) -> dict[int, str]:
        names = {}
        for handler_id in {job.handler_id for job in jobs}:
            handler = await self._catalog.handler_by_id(handler_id)
            names[handler_id] = handler.name if handler is not None else ""
        return names


def _assignments(started: Started, names: dict[int, str]) -> list[pb.Assignment]:
    # An attempt that was started by an earlier, repeated call has less time left than it began with.
    return [convert.assignment(job, names[job.handler_id], as_of=started.now) for job in started.jobs]


def _check_count(problems: Problems, field: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        problems.add(field, count, f"takes 1 to {limit} of them")


def _check_ref(problems: Problems, field: str, ref: pb.AttemptRef) -> None:
    check_id(problems, ref.job_id, f"{field}.job_id")
    if ref.claim < 1:
        problems.add(f"{field}.claim", ref.claim, "has to be the claim of the message, a positive number")


def _check_worker(problems: Problems, namespace: str, worker: str, incarnation: int) -> str:
    check_text(problems, "worker", worker, 200)
    if not worker:
        problems.add("worker", "", "is required")
    if incarnation <= 0:
        problems.add("incarnation", incarnation, "has to be that of the worker's hello, a positive number")
    return check_namespace(problems, namespace)


def _without_lease(worker: str, incarnation: int) -> WrongState:
    return WrongState("WORKER_WITHOUT_LEASE", f"worker {worker!r} has no live incarnation {incarnation}")
