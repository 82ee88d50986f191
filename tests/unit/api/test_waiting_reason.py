"""Why a job waits: the order of the reasons."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from server.api.new_jobs import created_record
from server.api.waiting_reason import waiting_reason, workers_reason
from server.domain.handler import HandlerView
from server.domain.job import Backoff, JobState, NewJob, Submitted, TimeLimits
from server.store.jobs_read import JobView
from shardwheel.v1.job_pb2 import Job

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NOBODY = HandlerView(workers=0, slots=0, free=0)
BUSY = HandlerView(workers=1, slots=2, free=0)
IDLE = HandlerView(workers=1, slots=2, free=2)
RECORD = created_record(
    NewJob(namespace_id=1, handler_id=1, payload=b"", backoff=Backoff(), limits=TimeLimits()),
    Submitted(job_id=4096, created=True, due_at=NOW, created_at=NOW),
)


def view(*, owned: bool = True, paused: bool = False, **fields: object) -> JobView:
    record = replace(RECORD, **fields)  # type: ignore[arg-type]
    return JobView(job=record, now=NOW, shard_owned=owned, handler_paused=paused)


def test_the_first_reason_that_holds_is_given() -> None:
    later = NOW + timedelta(seconds=1)
    parked = JobState.PARKED
    assert waiting_reason(view(owned=False, paused=True, due_at=later)) == Job.NOT_DUE
    assert waiting_reason(view(owned=False, paused=True, due_at=later, claim=3)) == Job.BACKING_OFF
    assert waiting_reason(view(owned=False, paused=True, state=parked)) == Job.QUEUED_BEHIND_KEY
    assert waiting_reason(view(owned=False, paused=True)) == Job.HANDLER_PAUSED
    assert waiting_reason(view(owned=False)) == Job.SHARD_WITHOUT_OWNER
    assert waiting_reason(view()) is None
    assert workers_reason(NOBODY) == Job.NO_WORKER
    assert workers_reason(BUSY) == Job.NO_FREE_SLOT
    assert workers_reason(IDLE) == Job.WAITING_REASON_UNSPECIFIED


def test_a_job_that_is_not_pending_waits_for_nothing() -> None:
    for state in (JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
        assert waiting_reason(view(owned=False, state=state)) == Job.WAITING_REASON_UNSPECIFIED
