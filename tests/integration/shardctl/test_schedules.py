"""`shardctl schedules` over a real socket."""

from datetime import UTC, datetime, timedelta

import grpc
import pytest

from shardwheel.v1.job_pb2 import Job
from shardwheel.v1.schedule_pb2 import CATCH_UP_ALL, OVERLAP_BUFFER_ONE, OVERLAP_SKIP, CronTiming, Schedule
from shardwheel.v1.schedule_service_pb2 import (
    CreateScheduleRequest,
    DeleteScheduleRequest,
    DeleteScheduleResponse,
    ListSchedulesRequest,
    ListSchedulesResponse,
    PauseScheduleRequest,
    PreviewScheduleRequest,
    PreviewScheduleResponse,
    ResumeScheduleRequest,
    TriggerScheduleRequest,
    TriggerScheduleResponse,
    UpdateScheduleRequest,
)
from tests.integration.shardctl.conftest import Shardctl
from tests.integration.shardctl.scripted_server import Refusal, ScriptedServer


def a_schedule(name: str = "nightly") -> Schedule:
    schedule = Schedule(id=77, namespace="default", name=name, etag="e1", fired_count=3, last_outcome=Job.COMPLETED)
    schedule.spec.cron.expression, schedule.spec.cron.time_zone = "30 2 * * *", "Europe/Paris"
    schedule.spec.job.handler, schedule.spec.job.payload = "report.build", b'{"day": 1}'
    schedule.spec.job.retry.max_attempts, schedule.spec.job.retry.multiplier = 4, 2.0
    schedule.spec.overlap = OVERLAP_SKIP
    schedule.skipped_counts.update({"overlap": 2, "paused": 0})
    schedule.next_fire_at.FromDatetime(datetime(2026, 12, 1, 1, 30, tzinfo=UTC))
    return schedule


def test_a_create_sends_all_that_was_given(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("CreateSchedule", a_schedule())
    ran = shardctl(
        *("schedules", "create", "nightly", "report.build", '{"day": 1}', "--cron", "30 2 * * *"),
        *("--time-zone", "Europe/Paris", "--gap", "skip", "--fold", "both", "--overlap", "buffer_one"),
        *("--catch-up", "all", "--catch-up-window", "2h", "--jitter", "1m", "--start", "2026-01-01T00:00:00Z"),
        *("--end", "2027-01-01T00:00:00Z", "--label", "team=data", "--max-attempts", "2", "--paused"),
    )
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.stdout == ("schedule nightly (30 2 * * * Europe/Paris) fires next at 2026-12-01T01:30:00Z\n")
    (request,) = server.requests(CreateScheduleRequest)
    spec = request.spec
    assert (request.namespace, request.name, request.paused) == ("default", "nightly", True)
    assert (spec.cron.expression, spec.cron.time_zone) == ("30 2 * * *", "Europe/Paris")
    assert (spec.cron.gap, spec.cron.fold) == (CronTiming.SKIP, CronTiming.BOTH)
    assert (spec.overlap, spec.catch_up) == (OVERLAP_BUFFER_ONE, CATCH_UP_ALL)
    assert (spec.catch_up_window.ToTimedelta(), spec.jitter.ToTimedelta()) == (
        timedelta(hours=2),
        timedelta(minutes=1),
    )
    assert spec.start_at.ToDatetime(tzinfo=UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert spec.end_at.ToDatetime(tzinfo=UTC) == datetime(2027, 1, 1, tzinfo=UTC)
    assert (spec.job.handler, spec.job.payload, spec.job.content_type) == (
        "report.build",
        b'{"day": 1}',
        "application/json",
    )
    assert (dict(spec.job.labels), spec.job.retry.max_attempts) == ({"team": "data"}, 2)


def test_intervals_and_single_instants(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("CreateSchedule", a_schedule())
    anchor = "2026-01-01T00:00:00Z"
    assert shardctl("schedules", "create", "a", "h", "--every", "90s", "--anchor", anchor).code == 0
    assert shardctl("schedules", "create", "b", "h", "--at", anchor).code == 0
    interval, once = (request.spec for request in server.requests(CreateScheduleRequest))
    assert interval.interval.every.ToTimedelta() == timedelta(seconds=90)
    assert interval.interval.anchor.ToDatetime(tzinfo=UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert once.WhichOneof("timing") == "once_at"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "a", "h"], "error: timing: give one of --cron EXPR, --every DURATION and --at INSTANT"),
        (["create", "a", "h", "--cron", "@daily", "--every", "5m"], "error: timing: give one of"),
        (["create", "a", "h", "--every", "5m", "--gap", "skip"], "error: timing: --time-zone, --gap and --fold belong"),
        (["create", "a", "--cron", "@daily"], "HANDLER"),
        (["create", "a", "h", "--cron", "@daily", "--overlap", "pile_up"], "--overlap"),
    ],
)
def test_bad_usage_exits_2_and_calls_nothing(
    server: ScriptedServer, shardctl: Shardctl, arguments: list[str], text: str
) -> None:
    ran = shardctl("schedules", *arguments)
    assert (ran.code, ran.stdout, server.calls) == (2, "", [])
    assert text in ran.stderr


def test_what_the_server_refuses_exits_2_naming_the_field(server: ScriptedServer, shardctl: Shardctl) -> None:
    refusal = Refusal(
        grpc.StatusCode.INVALID_ARGUMENT, "refused", ("spec.cron.expression", "minute: 60 is outside 0-59")
    )
    server.answer("CreateSchedule", refusal)
    ran = shardctl("schedules", "create", "a", "h", "--cron", "60 * * * *")
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr == "error: spec.cron.expression: minute: 60 is outside 0-59\n"


def test_an_update_sends_only_what_changes_guarded_by_the_etag(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetSchedule", a_schedule())
    server.answer("UpdateSchedule", a_schedule())
    ran = shardctl(
        *("schedules", "update", "nightly", "--time-zone", "America/Lima", "--payload", "text", "--max-attempts", "9"),
        *("--jitter", "5s", "--clear", "end_at", "--clear", "job.labels"),
    )
    assert (ran.code, ran.stderr) == (0, "")
    (request,) = server.requests(UpdateScheduleRequest)
    assert (request.name, request.etag) == ("nightly", "e1")
    assert list(request.update_mask.paths) == [
        "cron",
        "end_at",
        "jitter",
        "job.content_type",
        "job.labels",
        "job.payload",
        "job.retry",
    ]
    assert (request.spec.cron.expression, request.spec.cron.time_zone) == ("30 2 * * *", "America/Lima")
    assert (request.spec.job.payload, request.spec.job.content_type) == (b"text", "text/plain; charset=utf-8")
    assert (request.spec.job.retry.max_attempts, request.spec.job.retry.multiplier) == (9, 2.0)


def test_an_update_can_change_the_kind_of_timing(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetSchedule", a_schedule())
    server.answer("UpdateSchedule", a_schedule())
    assert shardctl("schedules", "update", "nightly", "--every", "5m").code == 0
    (request,) = server.requests(UpdateScheduleRequest)
    assert list(request.update_mask.paths) == ["interval"]
    assert request.spec.WhichOneof("timing") == "interval"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "error: update: give at least one option"),
        (["--clear", "nothing"], "error: --clear: 'nothing' is no field of a schedule"),
        (["--clear", "job.nothing"], "error: --clear: 'job.nothing'"),
        (["--clear", "overlap.x"], "error: --clear: 'overlap.x'"),
        (["--anchor", "2026-01-01T00:00:00Z"], "error: timing: --anchor belongs to --every"),
    ],
)
def test_an_update_that_says_nothing_sensible_is_refused(
    server: ScriptedServer, shardctl: Shardctl, options: list[str], text: str
) -> None:
    server.answer("GetSchedule", a_schedule())
    ran = shardctl("schedules", "update", "nightly", *options)
    assert ran.code == 2
    assert text in ran.stderr
    assert server.requests(UpdateScheduleRequest) == []


def test_an_update_that_lost_a_race_says_so(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetSchedule", a_schedule())
    server.answer("UpdateSchedule", Refusal(grpc.StatusCode.ABORTED, "the etag is another"))
    ran = shardctl("schedules", "update", "nightly", "--jitter", "5s")
    assert ran.code == 1
    assert "error: changed by someone else meanwhile: the etag is another" in ran.stderr


def test_a_list_fits_80_columns(server: ScriptedServer, shardctl: Shardctl) -> None:
    paused, ended = a_schedule("x" * 120 + "-end"), a_schedule("ended")
    paused.paused = True
    ended.ClearField("next_fire_at")
    server.answer("ListSchedules", ListSchedulesResponse(schedules=[paused, ended], next_page_token="more"))
    ran = shardctl("schedules", "list", "--prefix", "x", "--handler", "h", "--limit", "1")
    assert (ran.code, ran.widest) == (0, 80)
    head, first = ran.stdout.splitlines()
    assert head.split() == ["NAME", "TIMING", "NEXT", "STATE", "LAST"]
    assert first.split()[0].startswith("xxx")
    assert first.split()[0].endswith("x-end")
    assert first.endswith("2026-12-01T01:30:00Z  paused  completed")
    assert "--limit shows more" in ran.stderr
    (request,) = server.requests(ListSchedulesRequest)
    assert (request.name_prefix, request.handler, request.page_size) == ("x", "h", 2)


def test_a_list_as_json_has_whole_schedules(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("ListSchedules", ListSchedulesResponse(schedules=[a_schedule()]))
    data = shardctl("schedules", "list", "-o", "json").json
    (schedule,) = data["schedules"]
    assert data["more"] is False
    assert list(schedule) == [field.name for field in Schedule.DESCRIPTOR.fields]
    assert schedule["spec"]["cron"]["expression"] == "30 2 * * *"
    assert (schedule["spec"]["interval"], schedule["spec"]["once_at"]) == (None, None)
    assert (schedule["spec"]["overlap"], schedule["skipped_counts"]) == ("skip", {"overlap": 2, "paused": 0})


def test_a_schedule_is_shown_with_its_counters(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetSchedule", a_schedule())
    ran = shardctl("schedules", "get", "nightly")
    assert (ran.code, ran.stderr) == (0, "")
    assert ran.widest <= 80
    for text in (
        "30 2 * * * Europe/Paris",
        "fired          3 times",
        "skipped        2 overlap",
        'Payload:\n{"day": 1}',
    ):
        assert text in ran.stdout


def test_pause_resume_trigger_and_delete(server: ScriptedServer, shardctl: Shardctl) -> None:
    paused = a_schedule()
    paused.paused = True
    server.answer("PauseSchedule", paused)
    server.answer("ResumeSchedule", a_schedule())
    server.answer("TriggerSchedule", TriggerScheduleResponse(job=Job(id=5, handler="h", state=Job.PENDING)))
    server.answer("DeleteSchedule", DeleteScheduleResponse())
    ran = shardctl("schedules", "pause", "nightly", "--note", "maintenance")
    assert (ran.code, ran.stdout) == (0, "schedule nightly (30 2 * * * Europe/Paris) is paused\n")
    assert shardctl("schedules", "resume", "nightly").code == 0
    assert shardctl("schedules", "trigger", "nightly", "-o", "json").json["job"]["id"] == 5
    assert shardctl("schedules", "delete", "nightly", "-o", "json").json == {"name": "nightly", "deleted": True}
    assert server.requests(PauseScheduleRequest)[0].note == "maintenance"
    assert server.requests(ResumeScheduleRequest)[0].name == "nightly"
    assert server.requests(TriggerScheduleRequest)[0].name == "nightly"
    assert server.requests(DeleteScheduleRequest)[0].name == "nightly"


def test_a_stored_schedule_is_previewed_by_the_server(server: ScriptedServer, shardctl: Shardctl) -> None:
    paused = a_schedule()
    paused.paused = True
    response = PreviewScheduleResponse(description="At 02:30", notes=["a note"])
    response.firings.add().FromDatetime(datetime(2026, 12, 1, 1, 30, tzinfo=UTC))
    server.answer("GetSchedule", paused)
    server.answer("PreviewSchedule", response)
    ran = shardctl("schedules", "preview", "nightly", "--after", "2026-11-30T12:00:00Z", "--count", "1", "-o", "json")
    assert ran.json == {
        "firings": ["2026-12-01T01:30:00Z"],
        "notes": ["a note", "it is paused: no job is made until it is resumed"],
    }
    (request,) = server.requests(PreviewScheduleRequest)
    assert (request.spec, request.count) == (paused.spec, 1)
    table = shardctl("schedules", "preview", "nightly").stdout
    assert "2026-12-01 02:30:00+01:00" in table
