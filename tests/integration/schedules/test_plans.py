"""The plans of the hot statements of firing: the named partitions only, and only due rows of an index."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeAlias

import pytest

from server.domain.due_schedule import FireOrder
from server.domain.firing import plan_firings
from server.domain.schedule import OverlapPolicy
from server.store.arrays import Int4Array, Int8Array
from server.store.database import Connection
from server.store.migrate import migrate
from server.store.schedule_firing import DUE, FIRE, MAX_LIVE, NEXT, fire_params
from server.store.schedules import OUTCOMES, PAUSE, TRIGGER
from tests.support.postgres import PostgresServer, oldest_and_newest
from tests.support.schedules import PARTITION_OF, Bench, every, open_bench

Plan: TypeAlias = dict[str, Any]
PARTITION = 3
SHARDS_THERE = [shard for shard in range(64) if PARTITION_OF[shard] == PARTITION]
FUTURE, DUE_NOW = 4000, 40

COPIES = """
INSERT INTO schedules (id, shard, name, next_fire_at, namespace_id, handler_id, overlap, catch_up, catch_up_window_ms,
    timing, job, payload)
SELECT (n + 1000000)::int8 << 12 | w.shard, w.shard, 's' || n, s.next_fire_at, s.namespace_id, s.handler_id, s.overlap,
    s.catch_up, s.catch_up_window_ms, s.timing, s.job, s.payload
FROM generate_series(0, %s::int4) AS n CROSS JOIN LATERAL (SELECT %s::int4 + mod(n, 4) AS shard) w
CROSS JOIN schedules s WHERE s.id = %s
"""


@pytest.fixture(scope="module", params=oldest_and_newest(), ids=lambda installation: f"pg{installation.major}")
def server(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server of each version: the session's own if it has the version."""
    if request.param.major == postgres.major:
        yield postgres
        return
    with PostgresServer(installation=request.param) as started:
        yield started


@pytest.fixture
async def bench(server: PostgresServer) -> AsyncIterator[Bench]:
    """A partition with many schedules."""
    dsn = server.dsn(server.create_database())
    await migrate(dsn)
    async with open_bench(dsn) as opened:
        [model] = await opened.create(["s"], opened.definition(every(3600), overlap=OverlapPolicy.BUFFER_ONE))
        await opened.database.run(COPIES, (FUTURE + DUE_NOW, SHARDS_THERE[0], model.schedule_id))
        await opened.database.run("ANALYZE schedules")
        yield opened


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


async def explained(bench: Bench, statement: bytes | str, params: Sequence[object]) -> list[Plan]:
    """Run a statement and return the nodes of its plan; what it did is undone."""
    query = statement if isinstance(statement, bytes) else statement.encode()
    found: list[Plan] = []

    async def work(connection: Connection) -> None:
        cursor = await connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, params)
        row = await cursor.fetchone()
        assert row is not None
        document = json.loads(row[0]) if isinstance(row[0], str | bytes) else row[0]
        found.extend(nodes(document[0]["Plan"]))
        raise _Undo

    with pytest.raises(_Undo):
        await bench.database.transact(work)
    return found


class _Undo(Exception):
    pass


def relations(plan: list[Plan]) -> set[str]:
    return {node["Relation Name"] for node in plan if "Relation Name" in node}


def rows_walked(plan: list[Plan], relation: str) -> int:
    """Rows that scans of a relation touched, those that a filter dropped included."""
    return sum(
        round(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in plan
        if node.get("Relation Name") == relation and "Scan" in node["Node Type"]
    )


def assert_indexed(plan: list[Plan]) -> None:
    scans = {node["Node Type"] for node in plan if "Relation Name" in node and "Scan" in node["Node Type"]}
    assert scans <= {"Index Scan", "Index Only Scan"}


async def test_firing_walks_due_rows_of_the_named_partition_only(bench: Bench) -> None:
    shards = SHARDS_THERE
    schedules, jobs = f"schedules_{PARTITION:04d}", f"jobs_{PARTITION:04d}"
    epochs = list((await bench.own(shards)).items())
    [(total,)] = await bench.database.run(f"SELECT count(*) FROM {schedules}")
    assert total > FUTURE
    await bench.database.run(
        f"UPDATE {schedules} SET next_fire_at = now() - interval '1 hour' WHERE id IN "
        f"(SELECT id FROM {schedules} ORDER BY id LIMIT {DUE_NOW})"
    )
    due_params = (Int4Array(shards), Int8Array([]), 500, MAX_LIVE, 500)
    plan = await explained(bench, DUE.on(PARTITION), due_params)
    assert relations(plan) == {schedules, jobs}
    assert_indexed(plan)
    assert rows_walked(plan, schedules) == DUE_NOW

    plan = await explained(bench, NEXT.on(PARTITION), (Int4Array(shards), Int8Array([])))
    assert relations(plan) == {schedules}
    assert_indexed(plan)
    assert rows_walked(plan, schedules) == len(shards)

    found = await bench.firing.due_schedules(PARTITION, shards, limit=500)
    assert found.now is not None
    assert len(found.schedules) == DUE_NOW
    orders = [FireOrder(due=due, plan=plan_firings(due.state, found.now)) for due in found.schedules]
    job_ids = [[(n + 1 << 30) + due.shard] for n, due in enumerate(found.schedules)]
    plan = await explained(bench, FIRE.on(PARTITION), fire_params(epochs, orders, job_ids))
    assert relations(plan) == {schedules, jobs, "shards"}
    assert_indexed(plan)
    # Once to lock them, once to change them.
    assert rows_walked(plan, schedules) == 2 * DUE_NOW
    assert [
        node["Actual Rows"] for node in plan if node["Node Type"] == "ModifyTable" and node["Operation"] == "Insert"
    ] == [DUE_NOW]
    locks = [node for node in plan if node["Node Type"] == "LockRows"]
    assert len(locks) == 2
    assert all(lock["Plans"][0]["Node Type"] == "Sort" for lock in locks)

    schedule_id = found.schedules[0].schedule_id
    one = (schedule_id, found.schedules[0].shard)
    for statement, params in ((PAUSE, ("", *one, "")), (TRIGGER, (1, *one))):
        plan = await explained(bench, statement.on(PARTITION), params)
        assert relations(plan) <= {schedules, jobs}
        assert_indexed(plan)
        assert rows_walked(plan, schedules) == 1

    plan = await explained(bench, OUTCOMES, (Int8Array([schedule_id]),))
    assert all(name.startswith("job_history_") for name in relations(plan))
    assert_indexed(plan)
    assert not [node for node in plan if node["Node Type"] == "Sort" and node.get("Sort Key") == ["h.id DESC"]]
