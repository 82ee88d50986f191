"""Pausing, resuming, triggering and previewing schedules over gRPC, and what becomes of their jobs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from server.domain.due import NO_BOUND, Probe
from server.domain.job import JobState
from server.domain.outcome import Completed, Finish, completed
from server.domain.sharding import shard_of_id
from server.store.claim import claim
from server.store.finish import finish
from server.store.workers import admit
from shardwheel.v1 import schedule_pb2 as pb
from shardwheel.v1 import schedule_service_pb2 as messages
from shardwheel.v1.job_pb2 import Job, JobSpec
from tests.support.postgres import PostgresServer
from tests.support.schedule_api import Api, Refusal, cron_spec, interval_spec, open_api, refusal_of
from tests.support.schedules import PARTITION_OF
from tests.support.waiting import eventually

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def api(database: str) -> AsyncIterator[Api]:
    async with open_api(database) as opened:
        yield opened


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return refusal_of(caught.value)


async def create(api: Api, spec: pb.ScheduleSpec, *, paused: bool = False) -> pb.Schedule:
    return await api.stub.CreateSchedule(messages.CreateScheduleRequest(name="s", spec=spec, paused=paused))


async def get(api: Api) -> pb.Schedule:
    return await api.stub.GetSchedule(messages.GetScheduleRequest(name="s"))


async def trigger(api: Api) -> Job:
    return (await api.stub.TriggerSchedule(messages.TriggerScheduleRequest(name="s"))).job


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_no_job_is_made_while_paused_but_by_a_trigger(api: Api) -> None:
    spec = interval_spec(1)
    spec.overlap = pb.OVERLAP_ALLOW
    await create(api, spec)
    schedule = await api.bench.get("s")
    ownership = await api.bench.ownership()
    firer = api.bench.firer(ownership)
    for shard in ownership.epochs:
        firer.shard_started(shard)
    running = asyncio.create_task(firer.run())
    try:
        await eventually(lambda: api.bench.told, what="the first firing")
        paused = await api.stub.PauseSchedule(messages.PauseScheduleRequest(name="s", note="for the test"))
        before = len(api.bench.told)
        assert (paused.paused, paused.pause_note) == (True, "for the test")
        assert paused.fired_count == before
        passed = paused.next_fire_at.ToDatetime(UTC) + timedelta(seconds=2)
        await eventually(lambda: _after(api, passed), what="three boundaries pass")
        assert len(api.bench.told) == before == len(await api.bench.jobs_of(schedule))
        # Out of turn, one job, which counts as no firing.
        job = await trigger(api)
        assert [one.job_id for one in api.jobs_added] == [job.id]
        assert (await get(api)).fired_count == before
        assert len(await api.bench.jobs_of(schedule)) == before + 1
        resumed = await api.stub.ResumeSchedule(messages.ResumeScheduleRequest(name="s"))
        assert (resumed.paused, resumed.pause_note, resumed.updated_at) == (False, "", paused.updated_at)
        assert resumed.etag != paused.etag
        [*_, (shard, at)] = api.changed
        firer.schedules_changed(shard, at)
        await eventually(lambda: len(api.bench.told) > before, what="it fires again")
    finally:
        running.cancel()
        await firer.stop()


@pytest.mark.parametrize(
    ("catch_up", "jobs", "skipped"),
    [
        (pb.CATCH_UP_ONE, 1, {"catch_up": 5}),
        (pb.CATCH_UP_ALL, 6, {}),
        (pb.CATCH_UP_NONE, 0, {"paused": 6}),
    ],
)
async def test_after_a_pause_the_catch_up_policy_decides(
    api: Api, catch_up: pb.CatchUpPolicy.ValueType, jobs: int, skipped: dict[str, int]
) -> None:
    spec = interval_spec(600)
    spec.interval.anchor.FromDatetime(await api.bench.now() - timedelta(minutes=5))
    spec.catch_up, spec.overlap = catch_up, pb.OVERLAP_ALLOW
    made = await create(api, spec, paused=True)
    schedule = await api.bench.get("s")
    await api.bench.set_next(schedule, made.next_fire_at.ToDatetime(UTC) - timedelta(hours=1))
    firer = api.bench.firer(await api.bench.ownership())
    await firer.run_once()
    assert firer.fired_jobs == 0
    resumed = await api.stub.ResumeSchedule(messages.ResumeScheduleRequest(name="s"))
    assert api.changed == [(shard_of_id(made.id), resumed.next_fire_at.ToDatetime(UTC))]
    await firer.run_once()
    after = await get(api)
    assert len(await api.bench.jobs_of(schedule)) == after.fired_count == jobs
    assert dict(after.skipped_counts) == skipped
    assert after.next_fire_at == made.next_fire_at


async def _after(api: Api, instant: datetime) -> bool:
    return await api.bench.now() > instant


async def test_pausing_and_resuming_twice_changes_nothing_more(api: Api) -> None:
    await create(api, cron_spec(), paused=True)
    assert api.changed == []
    pause = messages.PauseScheduleRequest(name="s", note="a")
    first = await api.stub.PauseSchedule(pause)
    assert await api.stub.PauseSchedule(pause) == first
    assert (await api.stub.PauseSchedule(messages.PauseScheduleRequest(name="s", note="b"))).pause_note == "b"
    resumed = await api.stub.ResumeSchedule(messages.ResumeScheduleRequest(name="s"))
    assert await api.stub.ResumeSchedule(messages.ResumeScheduleRequest(name="s")) == resumed
    assert api.changed == [(shard_of_id(resumed.id), resumed.next_fire_at.ToDatetime(UTC))]
    answer = await refused(api.stub.PauseSchedule(messages.PauseScheduleRequest(name="s", note="x" * 1001)))
    assert list(answer.fields) == ["note"]


async def test_a_trigger_makes_a_job_of_now_every_time(api: Api) -> None:
    spec = cron_spec(payload=b"p")
    spec.overlap = pb.OVERLAP_BUFFER_ONE
    spec.job.labels["team"] = "red"
    spec.job.content_type, spec.job.priority = "text/plain", 1
    spec.job.timeouts.start_timeout.FromSeconds(60)
    schedule = await create(api, spec)
    before = await api.bench.now()
    jobs = await asyncio.gather(*(trigger(api) for _ in range(20)))
    after = await api.bench.now()
    assert len({job.id for job in jobs}) == len({job.scheduled_for.ToNanoseconds() for job in jobs}) == 20
    job = jobs[0]
    assert before <= job.scheduled_for.ToDatetime(UTC) == job.due_at.ToDatetime(UTC) <= after
    assert (job.schedule_id, shard_of_id(job.id)) == (schedule.id, shard_of_id(schedule.id))
    assert (job.handler, job.payload, job.content_type, job.priority) == ("h", b"p", "text/plain", 1)
    assert (job.name, dict(job.labels), job.state) == ("s", {"team": "red"}, Job.PENDING)
    assert job.timeouts.start_timeout.seconds == 60
    # Outside the overlap policy: it does not wait behind others.
    assert job.concurrency_key == ""
    shown = await get(api)
    assert shown.last_job_id in {job.id for job in jobs}
    assert (shown.fired_count, shown.etag, shown.HasField("last_fired_at")) == (0, schedule.etag, False)


async def test_the_last_outcome_is_that_of_the_job_that_finished_last(api: Api) -> None:
    schedule = await create(api, cron_spec())
    assert schedule.last_outcome == Job.STATE_UNSPECIFIED
    shard = shard_of_id(schedule.id)
    partition = PARTITION_OF[shard]
    epochs = list((await api.bench.own([shard])).items())
    worker_id = (
        await admit(api.bench.database, api.bench.namespace_id, "w", 1, "", b"{}", timedelta(minutes=1))
    ).worker_id
    assert worker_id is not None
    [first, second] = [await trigger(api), await trigger(api)]
    probe = Probe(shard, api.bench.handler_id, [worker_id] * 2, [NO_BOUND] * 5)
    claimed = await claim(api.bench.database, partition, epochs, [probe])
    refs = {job.job_id: job.ref for job in claimed.jobs}
    await finish(api.bench.database, partition, [completed(refs[second.id], Completed(b"", ""))])
    assert (await get(api)).last_outcome == Job.COMPLETED
    await finish(api.bench.database, partition, [Finish(ref=refs[first.id], state=JobState.FAILED)])
    assert (await get(api)).last_outcome == Job.FAILED
    listed = await api.stub.ListSchedules(messages.ListSchedulesRequest())
    assert listed.schedules[0].last_outcome == Job.FAILED


async def test_a_firer_survives_the_loss_of_the_database(
    api: Api, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    spec = interval_spec(1)
    spec.overlap = pb.OVERLAP_ALLOW
    await create(api, spec)
    schedule = await api.bench.get("s")
    ownership = await api.bench.ownership()
    firer = api.bench.firer(ownership, sweep_s=0.5)
    for shard in ownership.epochs:
        firer.shard_started(shard)
    running = asyncio.create_task(firer.run())
    try:
        await eventually(lambda: api.bench.told, what="the first firing")
        postgres.kill9()
        await eventually(
            lambda: "firing waits for the database" in [record.msg for record in caplog.records],
            what="the firer notices",
        )
        await asyncio.to_thread(postgres.start)
        seen = len(api.bench.told)
        await eventually(lambda: len(api.bench.told) > seen + 1, timeout_s=20, what="firing goes on")
    finally:
        running.cancel()
        await firer.stop()
    warnings = [record.msg for record in caplog.records if record.name == "server.engine.firer"]
    assert warnings.count("firing waits for the database") <= 2
    await eventually(lambda: connected(api), timeout_s=20, what="no connection is a dead one")
    after = await api.bench.get("s")
    made = [nominal for nominal, _, _ in await api.bench.jobs_of(schedule)]
    assert len(made) == len(set(made)) == after.fired_count
    assert after.next_fire_at is not None
    decided = (after.next_fire_at - made[0]) // timedelta(seconds=1)
    assert after.fired_count + sum(after.skipped_counts.values()) == decided


async def test_a_call_while_the_database_is_away_says_so(api: Api, postgres: PostgresServer) -> None:
    await create(api, cron_spec())
    postgres.kill9()
    try:
        answer = await refused(api.stub.GetSchedule(messages.GetScheduleRequest(name="s")))
        assert answer.code == grpc.StatusCode.UNAVAILABLE
    finally:
        await asyncio.to_thread(postgres.start)

    await eventually(lambda: connected(api), timeout_s=20, what="the service comes back by itself")


async def connected(api: Api) -> bool:
    """Whether many calls in a row succeed."""
    try:
        for _ in range(10):
            await get(api)
    except grpc.aio.AioRpcError as error:
        return error.code() != grpc.StatusCode.UNAVAILABLE
    return True


async def preview(api: Api, spec: pb.ScheduleSpec, after: str, count: int = 0) -> messages.PreviewScheduleResponse:
    request = messages.PreviewScheduleRequest(spec=spec, count=count)
    request.after.FromDatetime(at(after))
    return await api.stub.PreviewSchedule(request)


def texts(response: messages.PreviewScheduleResponse) -> list[str]:
    return [firing.ToDatetime(UTC).isoformat() for firing in response.firings]


async def test_a_preview_follows_the_clocks_of_its_zone(api: Api) -> None:
    fixed = await preview(api, cron_spec("30 1 * * *", "America/New_York"), "2026-10-31T16:00:00+00:00", 2)
    assert texts(fixed) == ["2026-11-01T05:30:00+00:00", "2026-11-02T06:30:00+00:00"]
    both = cron_spec("30 1 * * *", "America/New_York")
    both.cron.fold = pb.CronTiming.BOTH
    assert texts(await preview(api, both, "2026-10-31T16:00:00+00:00", 3)) == [
        "2026-11-01T05:30:00+00:00",
        "2026-11-01T06:30:00+00:00",
        "2026-11-02T06:30:00+00:00",
    ]
    gap = cron_spec("30 2 * * *", "America/New_York")
    assert texts(await preview(api, gap, "2026-03-07T17:00:00+00:00", 1)) == ["2026-03-08T07:00:00+00:00"]
    gap.cron.gap = pb.CronTiming.SKIP
    assert texts(await preview(api, gap, "2026-03-07T17:00:00+00:00", 1)) == ["2026-03-09T06:30:00+00:00"]


async def test_a_preview_tells_what_is_worth_knowing(api: Api) -> None:
    either = await preview(api, cron_spec("0 0 13 * 5"), "2026-01-01T00:00:00+00:00", 4)
    assert [text[:10] for text in texts(either)] == ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]
    assert any("either" in note for note in either.notes)
    assert either.description
    spread = cron_spec("*/7 * * * *")
    spread.jitter.FromMilliseconds(1500)
    notes = (await preview(api, spread, "2026-01-01T00:00:00+00:00")).notes
    assert any("step 7" in note for note in notes)
    assert any("1.5 s" in note for note in notes)
    ended = interval_spec(3600)
    ended.end_at.FromDatetime(at("2025-01-01T00:00:00+00:00"))
    answer = await preview(api, ended, "2026-01-01T00:00:00+00:00")
    assert (len(answer.firings), list(answer.notes)) == (0, ["it does not fire any more after this instant"])


async def test_a_preview_of_other_timings(api: Api) -> None:
    interval = interval_spec(5400)
    interval.interval.anchor.FromDatetime(at("2026-01-01T00:00:00+00:00"))
    answer = await preview(api, interval, "2026-01-01T00:00:00+00:00", 2)
    assert texts(answer) == ["2026-01-01T01:30:00+00:00", "2026-01-01T03:00:00+00:00"]
    assert answer.description == "Every 1 h 30 min, counted from 2026-01-01T00:00:00Z"
    once = pb.ScheduleSpec()
    once.once_at.FromDatetime(at("2026-02-01T00:00:00+00:00"))
    assert texts(await preview(api, once, "2026-01-01T00:00:00+00:00")) == ["2026-02-01T00:00:00+00:00"]
    assert len((await preview(api, cron_spec("* * * * * *"), "2026-01-01T00:00:00+00:00", 1000)).firings) == 1000
    soon = await api.stub.PreviewSchedule(messages.PreviewScheduleRequest(spec=interval_spec(60)))
    assert len(soon.firings) == 5
    assert soon.firings[0].ToDatetime(UTC) > datetime.now(UTC)


async def test_a_bad_preview_is_refused(api: Api) -> None:
    request = messages.PreviewScheduleRequest(spec=cron_spec("0 0 30 2 *"), count=1001)
    request.after.seconds = 10**12
    answer = await refused(api.stub.PreviewSchedule(request))
    assert (answer.code, set(answer.fields)) == (INVALID, {"spec.cron.expression", "count", "after"})
    assert list((await refused(api.stub.PreviewSchedule(messages.PreviewScheduleRequest()))).fields) == ["spec"]
    # H stands for a hash of the name, and here is none.
    hashed = messages.PreviewScheduleRequest(spec=cron_spec("H * * * *"))
    assert list((await refused(api.stub.PreviewSchedule(hashed))).fields) == ["spec.cron.expression"]
    # The job is not looked at.
    only = pb.ScheduleSpec(cron=pb.CronTiming(expression="@daily"), job=JobSpec(handler="no blanks"))
    assert len((await api.stub.PreviewSchedule(messages.PreviewScheduleRequest(spec=only))).firings) == 5
