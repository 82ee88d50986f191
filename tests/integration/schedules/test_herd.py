"""The long form of the herd: 50 000 schedules on one boundary."""

from datetime import timedelta

import pytest

from tests.support.schedules import Bench, cron

HERD = 50_000
JITTER = timedelta(seconds=60)

COPIES = """
INSERT INTO schedules (id, shard, name, next_fire_at, namespace_id, handler_id, overlap, catch_up, catch_up_window_ms,
    jitter_ms, timing, job, payload)
SELECT (n + 1000000)::int8 << 12 | mod(n, 64), mod(n, 64), 's' || n, s.next_fire_at, s.namespace_id, s.handler_id,
    s.overlap, s.catch_up, s.catch_up_window_ms, s.jitter_ms, s.timing, s.job, s.payload
FROM generate_series(2, %s::int4) AS n CROSS JOIN schedules s WHERE s.id = %s
"""


@pytest.mark.soak
@pytest.mark.parametrize("jitter", [JITTER, timedelta()], ids=["jitter", "plain"])
async def test_a_herd_is_spread_by_jitter_and_made_in_bounded_time(bench: Bench, jitter: timedelta) -> None:
    [model] = await bench.create(["s"], bench.definition(cron("0 * * * *"), jitter=jitter))
    await bench.database.run(COPIES, (HERD, model.schedule_id), timeout=60)
    [(nominal,)] = await bench.database.run("SELECT date_trunc('hour', now())")
    await bench.database.run("UPDATE schedules SET next_fire_at = %s", (nominal,), timeout=60)
    started = await bench.now()
    firer = bench.firer(await bench.ownership())
    await firer.run_once()
    seconds = (await bench.now() - started).total_seconds()
    assert firer.fired_jobs == HERD
    assert seconds < 60
    [(jobs, firings, times, early, late)] = await bench.database.run(
        "SELECT count(*), count(DISTINCT schedule_id), count(DISTINCT scheduled_for), min(due_at - scheduled_for), "
        "max(due_at - scheduled_for) FROM jobs",
        timeout=60,
    )
    assert (jobs, firings, times) == (HERD, HERD, 1)
    assert early >= timedelta()
    assert late < max(jitter, timedelta(microseconds=1))
    [(p99,)] = await bench.database.run(
        "SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY created_at) FROM jobs", timeout=60
    )
    print(f"made within {seconds:.1f} s, 99 % within {(p99 - started).total_seconds():.1f} s")
    if jitter:
        buckets = await bench.database.run(
            "SELECT floor(extract(epoch FROM due_at - scheduled_for))::int4, count(*) FROM jobs GROUP BY 1 ORDER BY 1",
            timeout=60,
        )
        # 833 in each second, with a standard deviation of 29.
        assert [second for second, _ in buckets] == list(range(60))
        assert all(660 < count < 1010 for _, count in buckets)
