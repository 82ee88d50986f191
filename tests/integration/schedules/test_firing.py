"""Due schedules become jobs: once each, by their policies, and never after a pause."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta

import pytest

from server.domain.due_schedule import FireOrder
from server.domain.firing import plan_firings
from server.domain.schedule import CatchUpPolicy, OnceSpec, OverlapPolicy
from server.domain.schedule_times import jitter_offset, next_nominal
from server.domain.sharding import shard_of_id
from server.domain.stored_schedule import StoredSchedule
from server.engine.failpoints import Failpoints
from server.store.schedules import PAUSE
from tests.support.schedules import PARTITION_OF, Bench, every
from tests.support.waiting import eventually

MINUTE = timedelta(minutes=1)


async def missed(bench: Bench, schedule: StoredSchedule, ago: timedelta) -> None:
    """Let the last hours pass unnoticed: the next firing lies `ago` in the past."""
    assert schedule.next_fire_at is not None
    await bench.set_next(schedule, schedule.next_fire_at - ago)


async def test_a_due_schedule_makes_one_job_and_tells_of_it(bench: Bench) -> None:
    now = await bench.now()
    definition = bench.definition(every(60, now - 30 * timedelta(seconds=1)), payload=b"\x00\xff", priority=2, name="n")
    [schedule] = await bench.create(["s"], definition)
    await missed(bench, schedule, MINUTE)
    firer = bench.firer(await bench.ownership())
    await firer.run_once()
    nominal = now - timedelta(seconds=30)
    rows = await bench.database.run(
        "SELECT id, shard, handler_id, namespace_id, due_at, scheduled_for, payload, priority, name, state, attempt,"
        " max_attempts, retry_max_ms, expires_at, deadline_at FROM jobs WHERE schedule_id = %s",
        (schedule.schedule_id,),
    )
    shard = shard_of_id(schedule.schedule_id)
    [told] = bench.told
    assert rows == [
        (told.job_id, shard, bench.handler_id, bench.namespace_id, nominal, nominal, b"\x00\xff", 2, "n", 0, 0, 4,
         3_600_000, None, None)
    ]  # fmt: skip
    assert (told.shard, shard_of_id(told.job_id), told.due_at, told.priority) == (shard, shard, nominal, 2)
    after = await bench.get("s")
    assert (after.last_fired_at, after.last_job_id, after.fired_count) == (nominal, told.job_id, 1)
    assert after.next_fire_at == nominal + MINUTE
    assert (after.version, dict(after.skipped_counts)) == (schedule.version, {})


async def test_limits_of_a_firing_made_good_count_from_its_making(bench: Bench) -> None:
    from server.domain.job import TimeLimits

    limits = TimeLimits(start=timedelta(seconds=90), total=timedelta(hours=1))
    anchor = await bench.now() - timedelta(minutes=5)
    [schedule] = await bench.create(["s"], bench.definition(every(3600, anchor), limits=limits))
    await missed(bench, schedule, timedelta(hours=1))
    await bench.firer(await bench.ownership()).run_once()
    [row] = await bench.database.run(
        "SELECT due_at, expires_at - created_at, deadline_at - created_at FROM jobs WHERE schedule_id = %s",
        (schedule.schedule_id,),
    )
    assert row == (anchor, timedelta(seconds=90), timedelta(hours=1))


@pytest.mark.parametrize(
    ("catch_up", "overlap", "window", "jobs", "skipped"),
    [
        (CatchUpPolicy.ONE, OverlapPolicy.SKIP, timedelta(days=1), 1, {"catch_up": 18}),
        (CatchUpPolicy.ONE, OverlapPolicy.ALLOW, timedelta(minutes=1), 0, {"catch_up": 19}),
        (CatchUpPolicy.ALL, OverlapPolicy.ALLOW, timedelta(days=1), 19, {}),
        (CatchUpPolicy.ALL, OverlapPolicy.ALLOW, timedelta(minutes=60), 6, {"catch_up": 13}),
        (CatchUpPolicy.ALL, OverlapPolicy.SKIP, timedelta(days=1), 1, {"overlap": 18}),
        (CatchUpPolicy.NONE, OverlapPolicy.ALLOW, timedelta(days=1), 0, {"catch_up": 19}),
    ],
)
async def test_after_an_outage_of_hours_the_catch_up_policy_decides(
    bench: Bench,
    catch_up: CatchUpPolicy,
    overlap: OverlapPolicy,
    window: timedelta,
    jobs: int,
    skipped: dict[str, int],
) -> None:
    now = await bench.now()
    spec = every(600, now - timedelta(minutes=5))
    definition = bench.definition(spec, catch_up=catch_up, overlap=overlap, catch_up_window=window)
    [schedule] = await bench.create(["s"], definition)
    await missed(bench, schedule, timedelta(hours=3, minutes=10))
    await bench.firer(await bench.ownership()).run_once()
    made = await bench.jobs_of(schedule)
    after = await bench.get("s")
    assert len(made) == jobs == after.fired_count
    assert dict(after.skipped_counts) == skipped
    assert jobs + sum(skipped.values()) == 19
    assert after.next_fire_at == now + timedelta(minutes=5)
    nominals = [nominal for nominal, _, _ in made]
    if catch_up is CatchUpPolicy.ONE and made:
        assert nominals == [now - timedelta(minutes=5)]
    assert [due for _, due, _ in made] == nominals


async def test_catching_up_on_thousands_takes_several_batches(bench: Bench) -> None:
    now = await bench.now()
    definition = bench.definition(every(1, now), catch_up=CatchUpPolicy.ALL, overlap=OverlapPolicy.ALLOW)
    [schedule] = await bench.create(["s"], definition)
    await bench.set_next(schedule, now - timedelta(seconds=5000))
    await bench.firer(await bench.ownership()).run_once()
    after = await bench.get("s")
    made = await bench.jobs_of(schedule)
    nominals = [nominal for nominal, _, _ in made]
    assert 1000 <= len(made) <= 1020
    assert len(set(nominals)) == len(nominals) == after.fired_count
    assert nominals == [nominals[0] + n * timedelta(seconds=1) for n in range(len(nominals))]
    assert set(after.skipped_counts) == {"limit"}
    assert after.next_fire_at is not None
    first = now - timedelta(seconds=5000)
    assert after.fired_count + after.skipped_counts["limit"] == (after.next_fire_at - first) // timedelta(seconds=1)


async def test_nothing_is_fired_that_was_paused_between_read_and_commit(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(60)))
    await missed(bench, schedule, MINUTE)
    failpoints = Failpoints()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await go_on.wait()

    failpoints.set("fire.selected", hold)
    firer = bench.firer(await bench.ownership(), failpoints=failpoints)
    firing = asyncio.create_task(firer.run_once())
    await asyncio.wait_for(reached.wait(), 10)
    await bench.schedules.pause(bench.namespace_id, "s", "maintenance")
    failpoints.set("fire.selected", None)
    go_on.set()
    await asyncio.wait_for(firing, 10)
    assert await bench.jobs_of(schedule) == []
    after = await bench.get("s")
    assert (after.paused, after.pause_note, after.fired_count) == (True, "maintenance", 0)


async def test_a_firing_that_waits_for_a_pause_under_way_sees_it(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(60)))
    await missed(bench, schedule, MINUTE)
    shard = shard_of_id(schedule.schedule_id)
    partition = PARTITION_OF[shard]
    epochs = await bench.own([shard])
    found = await bench.firing.due_schedules(partition, [shard], limit=10)
    assert found.now is not None
    [due] = found.schedules
    order = FireOrder(due=due, plan=plan_firings(due.state, found.now))
    async with bench.database._api.connection() as connection, connection.transaction():
        await connection.execute(PAUSE.on(partition), ("", schedule.schedule_id, shard, ""))
        firing = asyncio.create_task(bench.firing.fire(partition, list(epochs.items()), [order]))
        blocked = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await eventually(lambda: _some(bench, blocked), what="the firing waits for the row")
    fired = await firing
    assert (fired.live_shards, fired.schedule_ids, fired.jobs) == (frozenset({shard}), frozenset(), [])
    assert await bench.jobs_of(schedule) == []


async def _some(bench: Bench, statement: str) -> bool:
    [(count,)] = await bench.database.run(statement, api=True)
    return bool(count)


async def test_two_nodes_that_both_believe_to_own_a_shard_fire_once(bench: Bench) -> None:
    now = await bench.now()
    made = await bench.create([f"s{n}" for n in range(200)], bench.definition(every(60, now - timedelta(seconds=20))))
    for schedule in made[:1]:
        await missed(bench, schedule, MINUTE)
    await bench.database.run(
        "UPDATE schedules SET next_fire_at = next_fire_at - interval '60 s' WHERE next_fire_at > now()"
    )
    stale = await bench.ownership(token=1)
    fresh = await bench.ownership(token=2)
    old, new = bench.firer(stale), bench.firer(fresh)
    await asyncio.wait_for(asyncio.gather(old.run_once(), new.run_once(), old.run_once()), 20)
    [(jobs, schedules)] = await bench.database.run("SELECT count(*), count(DISTINCT schedule_id) FROM jobs")
    assert (jobs, schedules) == (200, 200)
    assert old.fired_jobs == 0
    assert new.fired_jobs == 200
    assert len(fresh.epochs) == 64
    # Of shards in which the other one was first, it had nothing to try.
    assert len(stale.epochs) < 64


async def test_an_order_is_applied_once_however_often_it_is_sent(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(60)))
    await missed(bench, schedule, MINUTE)
    shard = shard_of_id(schedule.schedule_id)
    epochs = list((await bench.own([shard])).items())
    found = await bench.firing.due_schedules(PARTITION_OF[shard], [shard], limit=10)
    assert found.now is not None
    orders = [FireOrder(due=due, plan=plan_firings(due.state, found.now)) for due in found.schedules]
    fired = [await bench.firing.fire(PARTITION_OF[shard], epochs, orders) for _ in range(3)]
    assert [len(one.jobs) for one in fired] == [1, 0, 0]
    assert (await bench.get("s")).fired_count == 1
    # Even if the pointer were moved back, which nothing does, no nominal time makes a second job.
    assert schedule.next_fire_at is not None
    await bench.set_next(schedule, schedule.next_fire_at - MINUTE)
    assert (await bench.firing.fire(PARTITION_OF[shard], epochs, orders)).jobs == []
    assert len(await bench.jobs_of(schedule)) == 1


async def test_jitter_spreads_a_herd_evenly_and_stably(bench: Bench) -> None:
    now = await bench.now()
    spec = every(60, now - timedelta(seconds=1))
    names = [f"s{n}" for n in range(500)]
    with_jitter = bench.definition(spec, jitter=timedelta(seconds=90))
    made = await bench.create(names, with_jitter)
    plain = await bench.create([f"plain{n}" for n in range(500)], bench.definition(spec))
    await bench.database.run("UPDATE schedules SET next_fire_at = %s", (now - timedelta(seconds=1),))
    await bench.firer(await bench.ownership()).run_once()
    rows = await bench.database.run("SELECT schedule_id, scheduled_for, due_at FROM jobs")
    due = {schedule_id: due_at for schedule_id, _, due_at in rows}
    nominal = now - timedelta(seconds=1)
    assert {scheduled_for for _, scheduled_for, _ in rows} == {nominal}
    assert {due[schedule.schedule_id] for schedule in plain} == {nominal}
    offsets = {schedule.schedule_id: due[schedule.schedule_id] - nominal for schedule in made}
    following = next_nominal(with_jitter.timing, nominal)
    assert following == nominal + MINUTE
    for schedule_id, offset in offsets.items():
        assert timedelta() <= offset < MINUTE
        assert offset == jitter_offset(schedule_id, nominal, timedelta(seconds=90), following)
    # Ten buckets of 50 expected: five standard deviations are 34.
    buckets = Counter(offset // timedelta(seconds=6) for offset in offsets.values())
    assert set(buckets) == set(range(10))
    assert all(16 < count < 84 for count in buckets.values()), buckets


async def test_a_one_time_schedule_in_the_past_goes_by_its_catch_up_policy_and_ends(bench: Bench) -> None:
    at = await bench.now() - timedelta(minutes=10)
    await bench.create(["one"], bench.definition(OnceSpec(at=at)))
    await bench.create(["none"], bench.definition(OnceSpec(at=at), catch_up=CatchUpPolicy.NONE))
    await bench.firer(await bench.ownership()).run_once()
    one, none = await bench.get("one"), await bench.get("none")
    assert (one.next_fire_at, one.fired_count, one.last_fired_at) == (None, 1, at)
    assert (none.next_fire_at, none.fired_count, dict(none.skipped_counts)) == (None, 0, {"catch_up": 1})


async def test_skipped_firings_are_added_to_what_was_counted_before(bench: Bench) -> None:
    now = await bench.now()
    spec = every(600, now - timedelta(minutes=5))
    [schedule] = await bench.create(["s"], bench.definition(spec, catch_up=CatchUpPolicy.NONE))
    await bench.database.run('UPDATE schedules SET skipped_counts = \'{"catch_up": 2, "paused": 7}\'')
    await missed(bench, schedule, timedelta(minutes=30))
    await bench.firer(await bench.ownership()).run_once()
    assert dict((await bench.get("s")).skipped_counts) == {"catch_up": 5, "paused": 7}


async def test_one_schedule_that_cannot_be_fired_holds_up_none(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    made = await bench.create([f"s{n}" for n in range(60)], bench.definition(every(60)))
    # Of a later version; without a value that a job needs.
    unknown = "UPDATE schedules SET timing = jsonb_set(timing, '{v}', '9') WHERE id = %s"
    broken = "UPDATE schedules SET job = job #- '{resolved,max_attempts}' WHERE id = %s"
    await bench.database.run(unknown, (made[0].schedule_id,))
    await bench.database.run(broken, (made[1].schedule_id,))
    await bench.database.run("UPDATE schedules SET next_fire_at = next_fire_at - interval '60 s'")
    firer = bench.firer(await bench.ownership())
    await firer.run_once()
    assert firer.fired_jobs == 58
    await firer.run_once()
    told = [(record.msg, record.__dict__["schedule_id"]) for record in caplog.records]
    assert sorted(told) == sorted(
        [("schedule cannot be read", made[0].schedule_id), ("schedule cannot be fired", made[1].schedule_id)]
    )
    # Mended, and told of: it fires at once.
    await bench.database.run(
        "UPDATE schedules SET job = jsonb_set(job, '{resolved,max_attempts}', '4') WHERE id = %s",
        (made[1].schedule_id,),
    )
    firer.schedules_changed(shard_of_id(made[1].schedule_id), await bench.now())
    await firer.run_once()
    assert firer.fired_jobs == 59


async def test_due_times_never_lie_before_the_nominal_time_of_the_database_clock(bench: Bench) -> None:
    [schedule] = await bench.create(["s"], bench.definition(every(1), overlap=OverlapPolicy.ALLOW))
    ownership = await bench.ownership()
    firer = bench.firer(ownership)
    for shard in ownership.epochs:
        firer.shard_started(shard)
    running = asyncio.create_task(firer.run())
    try:
        await eventually(lambda: len(bench.told) >= 3, timeout_s=10, what="three firings")
    finally:
        running.cancel()
        await firer.stop()
    rows: list[tuple[datetime, datetime]] = await bench.database.run(
        "SELECT scheduled_for, created_at FROM jobs WHERE schedule_id = %s ORDER BY scheduled_for",
        (schedule.schedule_id,),
    )
    assert [nominal for nominal, _ in rows] == [rows[0][0] + n * timedelta(seconds=1) for n in range(len(rows))]
    late = [made - nominal for nominal, made in rows]
    assert min(late) >= timedelta()
    assert sorted(late)[len(late) // 2] < timedelta(milliseconds=200)
