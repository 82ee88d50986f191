"""Defining schedules over gRPC: create, get, list, update, ensure, delete."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from server.domain.sharding import shard_of, shard_of_id
from shardwheel.v1 import schedule_pb2 as pb
from shardwheel.v1 import schedule_service_pb2 as messages
from shardwheel.v1.job_pb2 import JobSpec, RetryPolicy
from shardwheel.v1.schedule_service_pb2 import EnsureSchedulesResponse
from tests.support.schedule_api import Api, Refusal, cron_spec, interval_spec, open_api, refusal_of
from tests.support.schedules import SHARDS

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def api(database: str) -> AsyncIterator[Api]:
    async with open_api(database) as opened:
        yield opened


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return refusal_of(caught.value)


def create(name: str, spec: pb.ScheduleSpec, **fields: Any) -> messages.CreateScheduleRequest:
    return messages.CreateScheduleRequest(name=name, spec=spec, **fields)


async def test_a_schedule_is_shown_with_its_defaults_and_canonical_cron(api: Api) -> None:
    before = await api.bench.now()
    made = await api.stub.CreateSchedule(create("nightly", cron_spec("@daily", "Europe/Paris")))
    assert made.id > 0
    assert (made.namespace, made.name, made.paused, made.fired_count) == ("default", "nightly", False, 0)
    assert made.spec.cron.expression == "0 0 * * *"
    assert made.spec.cron.gap == pb.CronTiming.RUN_AFTER
    assert made.spec.cron.fold == pb.CronTiming.FIRST
    assert (made.spec.overlap, made.spec.catch_up) == (pb.OVERLAP_SKIP, pb.CATCH_UP_ONE)
    assert made.spec.catch_up_window.ToTimedelta() == timedelta(days=1)
    assert made.spec.job == JobSpec(handler="h", payload=b"{}")
    assert made.description == "At 00:00 (Europe/Paris)"
    following = made.next_fire_at.ToDatetime(UTC)
    assert before < following <= before + timedelta(days=1)
    assert made.created_at == made.updated_at
    assert shard_of_id(made.id) == shard_of(SHARDS, "default", "schedule", "nightly")
    assert api.changed == [(shard_of_id(made.id), following)]
    assert await api.stub.GetSchedule(messages.GetScheduleRequest(name="nightly")) == made


async def test_creating_again_is_idempotent_for_an_equal_definition_only(api: Api) -> None:
    made = await api.stub.CreateSchedule(create("s", cron_spec("H H * * *")))
    assert await api.stub.CreateSchedule(create("s", cron_spec("H H * * *"))) == made
    # What is shown can be sent back, and so can another way to write it.
    assert await api.stub.CreateSchedule(create("s", made.spec)) == made
    other = await refused(api.stub.CreateSchedule(create("s", cron_spec("5 5 * * *"))))
    assert (other.code, other.reason) == (grpc.StatusCode.ALREADY_EXISTS, "SCHEDULE_EXISTS")
    payload = await refused(api.stub.CreateSchedule(create("s", cron_spec("H H * * *", payload=b"x"))))
    assert payload.code == grpc.StatusCode.ALREADY_EXISTS
    [(count,)] = await api.bench.database.run("SELECT count(*) FROM schedules")
    assert count == 1


async def test_two_clients_that_create_one_name_at_the_same_time_get_one_schedule(api: Api) -> None:
    calls = [api.stub.CreateSchedule(create("s", interval_spec(60))) for _ in range(10)]
    made = await asyncio.gather(*calls)
    assert len({schedule.id for schedule in made}) == 1
    [(rows, names)] = await api.bench.database.run(
        "SELECT (SELECT count(*) FROM schedules), (SELECT count(*) FROM schedule_names)"
    )
    assert (rows, names) == (1, 1)


async def test_an_interval_is_counted_from_the_creation(api: Api) -> None:
    made = await api.stub.CreateSchedule(create("s", interval_spec(90)))
    created = made.created_at.ToDatetime(UTC)
    assert made.spec.interval.anchor == made.created_at
    assert made.next_fire_at.ToDatetime(UTC) == created + timedelta(seconds=90)
    again = messages.EnsureSchedulesRequest(schedules=[messages.NamedScheduleSpec(name="s", spec=interval_spec(90))])
    response = await api.stub.EnsureSchedules(again)
    assert [result.change for result in response.results] == [EnsureSchedulesResponse.UNCHANGED]


async def test_a_concurrency_key_decides_the_shard_and_stays(api: Api) -> None:
    spec = cron_spec()
    spec.job.concurrency_key = "account-7"
    made = await api.stub.CreateSchedule(create("s", spec))
    assert shard_of_id(made.id) == shard_of(SHARDS, "default", "account-7")
    spec.job.concurrency_key = "account-8"
    answer = await refused(api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=spec)))
    assert (answer.code, list(answer.fields)) == (INVALID, ["spec.job.concurrency_key"])
    request = messages.EnsureSchedulesRequest(schedules=[messages.NamedScheduleSpec(name="s", spec=spec)])
    answer = await refused(api.stub.EnsureSchedules(request))
    assert list(answer.fields) == ["schedules[0].spec.job.concurrency_key"]


def anchored(spec: pb.ScheduleSpec) -> pb.ScheduleSpec:
    spec.interval.anchor.seconds = -(10**12)
    return spec


def _field(path: str, change: Callable[[pb.ScheduleSpec], object]) -> Any:
    return pytest.param(path, change, id=path)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        _field("spec", lambda spec: spec.ClearField("cron")),
        _field("spec.job", lambda spec: spec.ClearField("job")),
        _field("spec.cron.expression", lambda spec: setattr(spec.cron, "expression", "0 0 31 2 *")),
        _field("spec.cron.time_zone", lambda spec: setattr(spec.cron, "time_zone", "Mars/Olympus")),
        _field("spec.cron.gap", lambda spec: setattr(spec.cron, "gap", 7)),
        _field("spec.cron.fold", lambda spec: setattr(spec.cron, "fold", -1)),
        _field("spec.interval.every", lambda spec: spec.interval.every.FromMilliseconds(999)),
        _field("spec.interval.anchor", lambda spec: spec.CopyFrom(anchored(interval_spec(60, handler="unseen")))),
        _field("spec.once_at", lambda spec: setattr(spec.once_at, "nanos", -1)),
        _field("spec.overlap", lambda spec: setattr(spec, "overlap", pb.OVERLAP_BUFFER_ALL)),
        _field("spec.catch_up", lambda spec: setattr(spec, "catch_up", 9)),
        _field("spec.catch_up_window", lambda spec: spec.catch_up_window.FromSeconds(-1)),
        _field("spec.start_at", lambda spec: setattr(spec.start_at, "seconds", 10**12)),
        _field("spec.jitter", lambda spec: spec.jitter.FromSeconds(86401)),
        _field("spec.job.handler", lambda spec: setattr(spec.job, "handler", "no blanks")),
        _field("spec.job.priority", lambda spec: setattr(spec.job, "priority", 6)),
        _field("spec.job.due_at", lambda spec: spec.job.due_at.GetCurrentTime()),
        _field("spec.job.delay", lambda spec: spec.job.delay.FromSeconds(1)),
        _field("spec.job.dedupe_key", lambda spec: setattr(spec.job, "dedupe_key", "k")),
        _field("spec.job.payload", lambda spec: setattr(spec.job, "payload", b"x" * (256 * 1024 + 1))),
    ],
)
async def test_a_bad_definition_is_refused_by_field_and_nothing_is_stored(
    api: Api, path: str, change: Callable[[pb.ScheduleSpec], object]
) -> None:
    spec = cron_spec(handler="unseen")
    change(spec)
    answer = await refused(api.stub.CreateSchedule(create("s", spec)))
    assert (answer.code, list(answer.fields)) == (INVALID, [path])
    [counts] = await api.bench.database.run(
        "SELECT (SELECT count(*) FROM schedule_names), (SELECT count(*) FROM handlers WHERE name = 'unseen')"
    )
    assert counts == (0, 0)


async def test_everything_that_is_wrong_is_named_at_once(api: Api) -> None:
    spec = cron_spec("61 * * * *", "Nowhere", handler="")
    spec.end_at.FromDatetime(datetime(2030, 1, 1, tzinfo=UTC))
    spec.overlap = pb.OVERLAP_CANCEL_RUNNING
    answer = await refused(api.stub.CreateSchedule(create("bad name", spec)))
    expected = {"name", "spec.cron.expression", "spec.cron.time_zone", "spec.overlap", "spec.job.handler"}
    assert set(answer.fields) == expected
    assert "not served yet" in answer.fields["spec.overlap"]


async def test_ends_before_the_start_and_buffered_side_by_side_are_refused(api: Api) -> None:
    spec = cron_spec()
    spec.start_at.FromDatetime(datetime(2031, 1, 1, tzinfo=UTC))
    spec.end_at.FromDatetime(datetime(2030, 1, 1, tzinfo=UTC))
    assert list((await refused(api.stub.CreateSchedule(create("s", spec)))).fields) == ["spec.end_at"]
    spec = cron_spec()
    spec.overlap = pb.OVERLAP_BUFFER_ONE
    spec.job.concurrency_key, spec.job.concurrency_limit = "k", 2
    assert list((await refused(api.stub.CreateSchedule(create("s", spec)))).fields) == ["spec.job.concurrency_limit"]


async def test_an_unknown_schedule_or_namespace_is_not_found(api: Api) -> None:
    calls = [
        api.stub.GetSchedule(messages.GetScheduleRequest(name="s")),
        api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=cron_spec())),
        api.stub.DeleteSchedule(messages.DeleteScheduleRequest(name="s")),
        api.stub.PauseSchedule(messages.PauseScheduleRequest(name="s")),
        api.stub.ResumeSchedule(messages.ResumeScheduleRequest(name="s")),
        api.stub.TriggerSchedule(messages.TriggerScheduleRequest(name="s")),
    ]
    for call in calls:
        answer = await refused(call)
        assert (answer.code, answer.reason) == (grpc.StatusCode.NOT_FOUND, "SCHEDULE_NOT_FOUND")
    answer = await refused(api.stub.ListSchedules(messages.ListSchedulesRequest(namespace="nowhere")))
    assert (answer.code, answer.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_NOT_FOUND")


async def test_policies_are_resolved_at_the_definition_and_the_spec_stays_as_it_was_sent(api: Api) -> None:
    from server.domain.policies import Policies

    await api.catalog.register_handlers(api.bench.namespace_id, {"h": Policies(max_attempts=9)})
    spec = cron_spec()
    spec.job.retry.CopyFrom(RetryPolicy(multiplier=3))
    made = await api.stub.CreateSchedule(create("s", spec))
    assert made.spec.job.retry == RetryPolicy(multiplier=3)
    trigger = messages.TriggerScheduleRequest(name="s")
    retry = (await api.stub.TriggerSchedule(trigger)).job.retry
    assert (retry.max_attempts, retry.multiplier, retry.initial_delay.seconds) == (9, 3, 1)
    # Later defaults count from the next update on; to ensure the same again changes nothing.
    await api.catalog.register_handlers(api.bench.namespace_id, {"h": Policies(max_attempts=2)})
    ensure = messages.EnsureSchedulesRequest(schedules=[messages.NamedScheduleSpec(name="s", spec=spec)])
    assert (await api.stub.EnsureSchedules(ensure)).results[0].change == EnsureSchedulesResponse.UNCHANGED
    assert (await api.stub.TriggerSchedule(trigger)).job.retry.max_attempts == 9
    updated = await api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=spec))
    assert updated.next_fire_at == made.next_fire_at
    assert (await api.stub.TriggerSchedule(trigger)).job.retry.max_attempts == 2


async def test_an_update_changes_what_the_mask_names(api: Api) -> None:
    spec = cron_spec("0 3 * * *", "Europe/Paris", payload=b"old")
    spec.jitter.FromSeconds(30)
    spec.job.labels["team"] = "red"
    made = await api.stub.CreateSchedule(create("s", spec))
    new = cron_spec("@hourly", "Asia/Tokyo", handler="other", payload=b"new")
    new.job.labels["team"] = "blue"
    request = messages.UpdateScheduleRequest(
        name="s", spec=new, update_mask=FieldMask(paths=["job.payload", "job.labels", "jitter"]), etag=made.etag
    )
    changed = await api.stub.UpdateSchedule(request)
    expected = pb.ScheduleSpec()
    expected.CopyFrom(made.spec)
    expected.job.payload = b"new"
    expected.job.labels["team"] = "blue"
    expected.ClearField("jitter")
    assert changed.spec == expected
    assert (changed.next_fire_at, changed.id, changed.created_at) == (made.next_fire_at, made.id, made.created_at)
    assert changed.etag != made.etag
    assert changed.updated_at.ToDatetime() > made.updated_at.ToDatetime()
    # One field of the timing: the next firing moves, and the expression stays.
    zone = FieldMask(paths=["cron.time_zone"])
    moved = await api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=new, update_mask=zone))
    assert (moved.spec.cron.expression, moved.spec.cron.time_zone) == ("0 3 * * *", "Asia/Tokyo")
    assert moved.next_fire_at.ToDatetime().hour == 18
    # Another kind of timing, another handler.
    other = interval_spec(600, handler="other")
    mask = FieldMask(paths=["interval", "job.handler"])
    final = await api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=other, update_mask=mask))
    assert final.spec.WhichOneof("timing") == "interval"
    assert (final.spec.job.handler, final.spec.job.payload) == ("other", b"new")
    listed = await api.stub.ListSchedules(messages.ListSchedulesRequest(handler="other"))
    assert [schedule.name for schedule in listed.schedules] == ["s"]
    assert not (await api.stub.ListSchedules(messages.ListSchedulesRequest(handler="h"))).schedules


async def test_an_update_with_an_old_etag_is_aborted(api: Api) -> None:
    made = await api.stub.CreateSchedule(create("s", cron_spec()))
    first = messages.UpdateScheduleRequest(name="s", spec=cron_spec("5 * * * *"), etag=made.etag)
    await api.stub.UpdateSchedule(first)
    answer = await refused(api.stub.UpdateSchedule(first))
    assert (answer.code, answer.reason) == (grpc.StatusCode.ABORTED, "ETAG_MISMATCH")
    await api.stub.DeleteSchedule(messages.DeleteScheduleRequest(name="s"))
    await api.stub.CreateSchedule(create("s", cron_spec()))
    assert (await refused(api.stub.UpdateSchedule(first))).reason == "ETAG_MISMATCH"


async def test_unknown_paths_of_a_mask_are_refused(api: Api) -> None:
    await api.stub.CreateSchedule(create("s", cron_spec()))
    paths = ["cron", "cro", "job.payload.x", "job.labels.team", "", "timing", "job."]
    request = messages.UpdateScheduleRequest(name="s", spec=cron_spec(), update_mask=FieldMask(paths=paths))
    answer = await refused(api.stub.UpdateSchedule(request))
    assert (answer.code, set(answer.fields)) == (INVALID, {f"update_mask.paths[{n}]" for n in range(1, 7)})
    # What comes out of a valid mask is checked as a whole.
    mask = FieldMask(paths=["cron.expression"])
    request = messages.UpdateScheduleRequest(name="s", spec=cron_spec("never"), update_mask=mask)
    assert list((await refused(api.stub.UpdateSchedule(request))).fields) == ["spec.cron.expression"]
    # A field of a timing of another kind makes it that kind, and an incomplete one.
    mask = FieldMask(paths=["interval.anchor"])
    spec = interval_spec(60)
    spec.interval.anchor.GetCurrentTime()
    request = messages.UpdateScheduleRequest(name="s", spec=spec, update_mask=mask)
    assert list((await refused(api.stub.UpdateSchedule(request))).fields) == ["spec.interval.every"]


async def test_concurrent_updates_of_different_fields_all_hold(api: Api) -> None:
    await api.stub.CreateSchedule(create("s", cron_spec()))
    new = cron_spec("7 * * * *", payload=b"p")
    new.job.priority, new.job.name, new.job.content_type = 1, "n", "text/plain"
    new.catch_up = pb.CATCH_UP_NONE
    masks = ["cron", "job.payload", "job.priority", "job.name", "job.content_type", "catch_up"]
    requests = [
        messages.UpdateScheduleRequest(name="s", spec=new, update_mask=FieldMask(paths=[path])) for path in masks
    ]
    await asyncio.gather(*(api.stub.UpdateSchedule(request) for request in requests))
    spec = (await api.stub.GetSchedule(messages.GetScheduleRequest(name="s"))).spec
    assert spec.job == new.job
    assert (spec.cron.expression, spec.catch_up) == ("7 * * * *", pb.CATCH_UP_NONE)


async def test_a_one_time_schedule_that_has_fired_does_not_fire_its_time_again(api: Api) -> None:
    spec = pb.ScheduleSpec(job=JobSpec(handler="h"))
    past = await api.bench.now() - timedelta(minutes=1)
    spec.once_at.FromDatetime(past)
    await api.stub.CreateSchedule(create("s", spec))
    firer = api.bench.firer(await api.bench.ownership())
    await firer.run_once()
    spec.start_at.FromDatetime(past - timedelta(hours=1))
    ended = await api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=spec))
    assert not ended.HasField("next_fire_at")
    spec.once_at.FromDatetime(past - timedelta(seconds=1))
    answer = await refused(api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=spec)))
    assert list(answer.fields) == ["spec.once_at"]
    spec.once_at.FromDatetime(past + timedelta(days=1))
    later = await api.stub.UpdateSchedule(messages.UpdateScheduleRequest(name="s", spec=spec))
    assert later.next_fire_at == spec.once_at
    assert firer.fired_jobs == 1


def ensure(schedules: dict[str, pb.ScheduleSpec], **fields: Any) -> messages.EnsureSchedulesRequest:
    named = [messages.NamedScheduleSpec(name=name, spec=spec) for name, spec in schedules.items()]
    return messages.EnsureSchedulesRequest(schedules=named, **fields)


def changes(response: EnsureSchedulesResponse) -> dict[str, str]:
    return {result.name: EnsureSchedulesResponse.Change.Name(result.change) for result in response.results}


async def test_ensure_creates_updates_leaves_alone_and_prunes(api: Api) -> None:
    await api.stub.CreateSchedule(create("other", cron_spec()))
    plan = {f"app:{n}": cron_spec(f"{n % 60} * * * *") for n in range(300)}
    response = await api.stub.EnsureSchedules(ensure(plan))
    assert set(changes(response).values()) == {"CREATED"}
    assert len(api.changed) == 301
    same = await api.bench.get("app:0")
    moved = await api.bench.get("app:1")
    # Unchanged ones keep everything, even a next firing that no timing would give.
    odd = same.next_fire_at
    assert odd is not None
    await api.bench.set_next(same, odd + timedelta(seconds=7))
    plan["app:1"] = cron_spec("30 0 * * *")
    plan["app:2"] = cron_spec("2 * * * *", payload=b"new")
    for n in range(200, 300):
        del plan[f"app:{n}"]
    wanted = ensure(plan | {"app:new": cron_spec()}, prune_prefix="app:")
    wanted.dry_run = True
    foreseen = await api.stub.EnsureSchedules(wanted)
    assert (await api.bench.get("app:1")).version == 1
    wanted.dry_run = False
    response = await api.stub.EnsureSchedules(wanted)
    assert changes(response) == changes(foreseen)
    assert [result.name for result in response.results][:201] == [*plan, "app:new"]
    told = changes(response)
    assert (told["app:0"], told["app:1"], told["app:2"], told["app:new"]) == (
        "UNCHANGED",
        "UPDATED",
        "UPDATED",
        "CREATED",
    )
    assert sorted(name for name, change in told.items() if change == "DELETED") == [f"app:{n}" for n in range(200, 300)]
    after = await api.bench.get("app:0")
    assert (after.version, after.next_fire_at) == (1, odd + timedelta(seconds=7))
    assert (await api.bench.get("app:1")).next_fire_at != moved.next_fire_at
    [(rows, names)] = await api.bench.database.run(
        "SELECT (SELECT count(*) FROM schedules), (SELECT count(*) FROM schedule_names)"
    )
    assert (rows, names) == (202, 202)
    assert (await api.bench.get("other")).version == 1


@pytest.mark.parametrize(
    ("old", "new"), [(b"", b"?"), (b"?", b""), (b"", b""), (b"ab", b"ac"), (b"x" * 9000, b"x" * 9000)]
)
async def test_a_payload_of_any_size_is_compared_as_it_is(api: Api, old: bytes, new: bytes) -> None:
    await api.stub.EnsureSchedules(ensure({"s": cron_spec(payload=old)}))
    response = await api.stub.EnsureSchedules(ensure({"s": cron_spec(payload=new)}))
    assert changes(response) == {"s": "UNCHANGED" if old == new else "UPDATED"}
    assert (await api.bench.get("s")).definition.job.payload == new


async def test_ensure_is_all_or_nothing(api: Api) -> None:
    plan = {"good": cron_spec(), "worse": cron_spec("* * * *"), "bad name": interval_spec(0.5)}
    answer = await refused(api.stub.EnsureSchedules(ensure(plan)))
    expected = {"schedules[1].spec.cron.expression", "schedules[2].name", "schedules[2].spec.interval.every"}
    assert (answer.code, set(answer.fields)) == (INVALID, expected)
    request = ensure({"a": cron_spec()})
    request.schedules.add(name="a", spec=cron_spec("1 * * * *"))
    assert list((await refused(api.stub.EnsureSchedules(request))).fields) == ["schedules[1].name"]
    assert list((await refused(api.stub.EnsureSchedules(ensure({})))).fields) == ["schedules"]
    many = {f"s{n}": cron_spec() for n in range(1001)}
    assert list((await refused(api.stub.EnsureSchedules(ensure(many)))).fields) == ["schedules"]
    [(count,)] = await api.bench.database.run("SELECT count(*) FROM schedule_names")
    assert count == 0


async def test_a_dry_run_stores_nothing_at_all(api: Api) -> None:
    response = await api.stub.EnsureSchedules(ensure({"s": cron_spec(handler="unseen")}, dry_run=True))
    assert changes(response) == {"s": "CREATED"}
    assert response.results[0].HasField("next_fire_at")
    [counts] = await api.bench.database.run(
        "SELECT (SELECT count(*) FROM schedule_names), (SELECT count(*) FROM handlers WHERE name = 'unseen')"
    )
    assert counts == (0, 0)
    assert api.changed == []


async def test_lists_go_by_name_in_pages(api: Api) -> None:
    plan = {f"a:{n:03d}": cron_spec(handler="even" if n % 2 == 0 else "odd") for n in range(130)}
    await api.stub.EnsureSchedules(ensure(plan | {"b": cron_spec(), "B": cron_spec()}))

    async def walk(**filters: Any) -> list[list[str]]:
        pages, token = [], ""
        while True:
            request = messages.ListSchedulesRequest(page_token=token, **filters)
            response = await api.stub.ListSchedules(request)
            pages.append([schedule.name for schedule in response.schedules])
            token = response.next_page_token
            if not token:
                return pages

    pages = await walk(page_size=50)
    assert [len(page) for page in pages] == [50, 50, 32]
    assert [name for page in pages for name in page] == sorted([*plan, "b", "B"])
    assert [len(page) for page in await walk()] == [100, 32]
    assert await walk(name_prefix="a:01", page_size=10) == [[f"a:01{n}" for n in range(10)]]
    assert [name for page in await walk(handler="odd", page_size=40) for name in page] == [
        name for name in plan if int(name[2:]) % 2
    ]
    assert await walk(handler="nobody") == [[]]
    assert await walk(name_prefix="zzz") == [[]]


async def test_a_page_ends_before_it_grows_too_large_for_a_client(api: Api) -> None:
    for n in range(12):
        await api.stub.CreateSchedule(create(f"s{n:02d}", cron_spec(payload=b"x" * 250_000)))
    first = await api.stub.ListSchedules(messages.ListSchedulesRequest())
    assert 0 < len(first.schedules) < 12
    assert first.ByteSize() < 4 << 20
    rest = await api.stub.ListSchedules(messages.ListSchedulesRequest(page_token=first.next_page_token))
    names = [schedule.name for schedule in [*first.schedules, *rest.schedules]]
    assert names == [f"s{n:02d}" for n in range(12)]


async def test_page_tokens_of_other_lists_are_refused(api: Api) -> None:
    await api.stub.EnsureSchedules(ensure({f"{'n' * 190}{n}": cron_spec() for n in range(3)}))
    first = await api.stub.ListSchedules(messages.ListSchedulesRequest(page_size=1))
    token = first.next_page_token
    assert len((await api.stub.ListSchedules(messages.ListSchedulesRequest(page_token=token))).schedules) == 2
    bad = [
        messages.ListSchedulesRequest(page_token=token, name_prefix="n"),
        messages.ListSchedulesRequest(page_token=token[:-4]),
        messages.ListSchedulesRequest(page_token="ü"),
        messages.ListSchedulesRequest(page_token="A" * 10_000),
    ]
    for request in bad:
        answer = await refused(api.stub.ListSchedules(request))
        assert (answer.code, list(answer.fields)) == (INVALID, ["page_token"])
    answer = await refused(api.stub.ListSchedules(messages.ListSchedulesRequest(page_size=-1, name_prefix="a b")))
    assert set(answer.fields) == {"page_size", "name_prefix"}


async def test_a_deleted_schedule_is_gone_and_its_jobs_stay(api: Api) -> None:
    await api.stub.CreateSchedule(create("s", cron_spec()))
    await api.stub.TriggerSchedule(messages.TriggerScheduleRequest(name="s"))
    await api.stub.DeleteSchedule(messages.DeleteScheduleRequest(name="s"))
    answer = await refused(api.stub.GetSchedule(messages.GetScheduleRequest(name="s")))
    assert answer.code == grpc.StatusCode.NOT_FOUND
    [(jobs, names)] = await api.bench.database.run(
        "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM schedule_names)"
    )
    assert (jobs, names) == (1, 0)
