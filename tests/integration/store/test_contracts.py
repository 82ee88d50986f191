"""What SQL and Python have to agree on."""

import enum
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain.job import MAX_PRIORITY, MIN_PRIORITY, AttemptOutcome, JobState
from server.domain.schedule import CatchUpPolicy, OverlapPolicy
from server.domain.sharding import SHARD_MASK, shard_of
from server.store.migrate import MIGRATIONS
from tests.integration.store.bench import Bench
from tests.support.postgres import PostgresServer

PARTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40), min_size=1, max_size=4
)
COUNTS = [1 << n for n in range(11)]


async def shards_in_sql(store: Bench, cases: Iterable[tuple[int, list[str]]]) -> list[int]:
    found = []
    for shards, parts in cases:
        [(shard,)] = await store.sql("SELECT shardwheel.shard_of(%s, VARIADIC %s::text[])", shards, parts)
        found.append(shard)
    return found


def examples(count: int) -> list[tuple[int, list[str]]]:
    drawn: list[tuple[int, list[str]]] = []

    @settings(max_examples=count, deadline=None, database=None)
    @given(shards=st.sampled_from(COUNTS), parts=PARTS)
    def collect(shards: int, parts: list[str]) -> None:
        drawn.append((shards, parts))

    collect()
    return drawn


async def test_the_shard_of_a_key_is_the_same_in_sql_and_python(store: Bench) -> None:
    fixed = [
        (64, ["default", "key"]), (64, [""]), (64, ["", ""]), (64, ["a\x1fb"]), (64, ["a", "b"]), (64, ["1:a"]),
        (1024, ["ключ", "☃𝄞"]), (1, ["x"]), (1024, ["x" * 1000]), (64, ["e\u0301"]), (64, ["é"]),
    ]  # fmt: skip
    cases = [*fixed, *examples(200)]
    assert await shards_in_sql(store, cases) == [shard_of(shards, *parts) for shards, parts in cases]


async def test_the_shard_of_a_key_never_changes(store: Bench) -> None:
    """These are stored in databases of users: a change of the function would lose their jobs."""
    cases = [(64, ["default", "a"]), (64, ["default", "b"]), (1024, ["t", "customer-42"]), (8, ["ключ"])]
    known = [35, 6, 233, 4]
    assert [shard_of(shards, *parts) for shards, parts in cases] == known
    assert await shards_in_sql(store, cases) == known


async def constraint(store: Bench, table: str, column: str) -> set[int]:
    """Return the numbers that the CHECK of a column admits."""
    rows = await store.sql(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c' "
        "AND conkey = ARRAY[(SELECT attnum FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s)]",
        table, table, column,
    )  # fmt: skip
    [(text,)] = rows
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return set(range(numbers[0], numbers[-1] + 1)) if ">=" in text else set(numbers)


def values(kind: type[enum.IntEnum]) -> set[int]:
    return {int(one) for one in kind}


async def test_states_of_jobs_are_those_of_the_checks(store: Bench) -> None:
    live = await constraint(store, "jobs", "state")
    final = await constraint(store, "job_history", "state")
    assert final == {int(state) for state in JobState if state.final}
    assert live == {int(state) for state in JobState if not state.final}


async def test_numbers_of_enums_are_those_of_the_checks(store: Bench) -> None:
    assert await constraint(store, "attempts", "outcome") == values(AttemptOutcome)
    assert await constraint(store, "schedules", "overlap") == values(OverlapPolicy)
    assert await constraint(store, "schedules", "catch_up") == values(CatchUpPolicy)
    assert await constraint(store, "jobs", "priority") == set(range(MIN_PRIORITY, MAX_PRIORITY + 1))


async def test_history_is_partitioned_by_its_final_classes(store: Bench) -> None:
    rows = await store.sql(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = 'job_history'::regclass"
    )
    assert {name: [int(n) for n in re.findall(r"\d+", bound)] for name, bound in rows} == {
        "job_history_completed": [3],
        "job_history_unsuccessful": [4, 5],
    }


async def test_a_running_row_has_a_claim_a_worker_and_a_start(store: Bench) -> None:
    [job_id] = await store.submit()
    for missing in ("open_claim", "worker_id", "started_at"):
        columns = {"open_claim": "1", "worker_id": "1", "started_at": "now()"} | {missing: "NULL"}
        changes = ", ".join(f"{name} = {value}" for name, value in columns.items())
        with pytest.raises(Exception, match="jobs_check"):
            await store.sql(f"UPDATE jobs SET state = 1, {changes} WHERE id = %s", job_id)


def test_an_id_holds_every_shard() -> None:
    assert SHARD_MASK == 4095 >= max(COUNTS) - 1


async def test_no_statement_moves_a_row_to_another_partition(store: Bench, postgres: PostgresServer) -> None:
    """The partition key never changes on an update; the server would say so as a serialization failure."""
    job = await store.start()
    await store.sql("UPDATE jobs SET attempt = 2 WHERE id = %s", job.job_id)
    assert "moved to another partition" not in postgres.log_file.read_text(errors="replace")
    keys: list[Any] = await store.sql(
        "SELECT a.attname FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid "
        "AND a.attnum = ANY (p.partattrs::int2[]) WHERE p.partrelid IN ('jobs'::regclass, 'dedupe_keys'::regclass, "
        "'schedules'::regclass)"
    )
    assert {name for (name,) in keys} == {"shard"}


def test_every_migration_names_a_file() -> None:
    for _, _, package, file, _ in MIGRATIONS:
        assert resources.files(package).joinpath(file).is_file()
