"""`shardwheel.submit` and `shardwheel.submit_bytes`: jobs in the caller's own transaction."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
import pytest

from server.domain.policies import SERVER_DEFAULTS, to_document
from server.domain.sharding import shard_of, shard_of_id
from tests.integration.store.bench import NAMESPACE, SHARDS, Bench
from tests.support.waiting import eventually

SUBMIT = "SELECT * FROM shardwheel.submit({})"


class Got(NamedTuple):
    """What the function answers."""

    job_id: int
    created: bool
    differs: bool


async def submit(store: Bench, arguments: str, *params: object) -> Got:
    """Call the function in a transaction of its own."""
    [row] = await store.sql(SUBMIT.format(arguments), *params)
    return Got(*row)


@asynccontextmanager
async def application(store: Bench) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection as an application has it: another role, with no right but to submit."""
    role = f"app_{store.dsn.rpartition('/')[2]}"
    await store.sql(f"CREATE ROLE {role}")
    await store.sql(f"GRANT USAGE ON SCHEMA shardwheel TO {role}")
    await store.sql(f"GRANT EXECUTE ON FUNCTION shardwheel.submit, shardwheel.submit_bytes TO {role}")
    await store.sql("CREATE TABLE public.orders (number integer PRIMARY KEY, job_id bigint)")
    await store.sql(f"GRANT ALL ON public.orders TO {role}")
    try:
        async with await store.connect() as connection:
            await connection.execute(f"SET ROLE {role}".encode())
            await connection.execute("SET search_path = public")
            await connection.commit()
            yield connection
    finally:
        await store.sql(f"DROP OWNED BY {role}")
        await store.sql(f"DROP ROLE {role}")


async def test_a_job_appears_with_the_commit_and_with_nothing_else(store: Bench) -> None:
    async with application(store) as connection:
        cursor = await connection.execute("SELECT job_id FROM shardwheel.submit('h', '{\"order\": 1}')")
        [(job_id,)] = await cursor.fetchall()
        await connection.execute("INSERT INTO orders VALUES (1, %s)", (job_id,))
        assert await store.row(job_id) is None
        await connection.rollback()
        assert await store.row(job_id) is None
        cursor = await connection.execute("SELECT job_id FROM shardwheel.submit('h', '{\"order\": 2}')")
        [(job_id,)] = await cursor.fetchall()
        await connection.commit()
    row = await store.row(job_id)
    assert (row.payload, row.content_type) == (b'{"order": 2}', "application/json")
    assert (row.handler_id, row.namespace_id, row.state, row.shard) == (
        store.handler,
        NAMESPACE,
        0,
        shard_of_id(job_id),
    )


async def test_a_role_that_may_only_submit_sees_nothing_else(store: Bench) -> None:
    async with application(store) as connection:
        for forbidden in (
            "SELECT FROM shardwheel_store.jobs",
            "SELECT nextval('shardwheel_store.object_ids')",
            "SELECT setval('shardwheel_store.submit_numbers', 1)",
            "SELECT shardwheel_store.submit_number()",
            "SELECT shardwheel.complete_attempt(1, 1, '', '')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                async with connection.transaction():
                    await connection.execute(forbidden.encode())


async def test_without_the_right_nobody_submits(store: Bench) -> None:
    role = f"nobody_{store.dsn.rpartition('/')[2]}"
    await store.sql(f"CREATE ROLE {role}")
    try:
        async with await store.connect() as connection:
            await connection.execute(f"SET ROLE {role}".encode())
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute("SELECT shardwheel.submit('h')")
    finally:
        await store.sql(f"DROP ROLE {role}")


async def test_objects_of_the_caller_do_not_stand_in_for_ours(store: Bench) -> None:
    """The function runs with its owner's rights: no name in it may lead to what the caller has made."""
    async with application(store) as connection:
        await connection.execute("CREATE TEMP TABLE namespaces (id integer, name text, defaults jsonb)")
        await connection.execute("INSERT INTO pg_temp.namespaces VALUES (77, 'default', '{}')")
        await connection.execute("CREATE TEMP TABLE jobs (id bigint)")
        cursor = await connection.execute("SELECT job_id FROM shardwheel.submit('h')")
        [(job_id,)] = await cursor.fetchall()
        await connection.commit()
    assert (await store.row(job_id)).namespace_id == NAMESPACE


async def test_handlers_are_made_when_they_are_first_named(store: Bench) -> None:
    job_id, _, _ = await submit(store, "'never.seen'")
    [(name, defaults)] = await store.sql(
        "SELECT h.name, h.defaults FROM handlers h JOIN jobs j ON j.handler_id = h.id WHERE j.id = %s", job_id
    )
    assert (name, defaults) == ("never.seen", b"{}")


async def test_two_transactions_that_name_a_new_handler_get_the_same_one(store: Bench) -> None:
    async with await store.connect() as first, await store.connect() as second:
        await first.execute("SELECT shardwheel.submit('new')")
        waiting = asyncio.create_task(second.execute("SELECT shardwheel.submit('new')"))
        await eventually(store.waiting_for_locks, what="the second waits for the first")
        await first.commit()
        await waiting
        await second.commit()
    assert await store.sql("SELECT count(DISTINCT handler_id), count(*) FROM jobs") == [(1, 2)]


async def test_policies_come_from_the_call_the_handler_the_namespace_and_the_server(store: Bench) -> None:
    await store.sql('UPDATE namespaces SET defaults = \'{"max_attempts": 7, "attempt_ms": 5000, "initial_ms": 20}\'')
    await store.sql('UPDATE handlers SET defaults = \'{"max_attempts": 6, "maximum_ms": 50}\'')
    job_id, _, _ = await submit(store, "'h', multiplier => 3, total_timeout => '1 hour'")
    row = await store.row(job_id)
    assert (row.max_attempts, row.attempt_timeout_ms, row.retry_initial_ms, row.retry_max_ms) == (6, 5000, 20, 50)
    assert (row.retry_multiplier, row.total_timeout_ms, row.start_timeout_ms) == (3.0, 3_600_000, None)
    assert row.deadline_at == row.due_at + timedelta(hours=1) == row.expires_at


async def test_defaults_of_a_new_cluster_are_those_of_the_server(store: Bench) -> None:
    assert await store.sql("SELECT job_defaults = %s::jsonb, max_payload_bytes FROM cluster",
                           to_document(SERVER_DEFAULTS).decode()) == [(True, 256 * 1024)]  # fmt: skip


async def test_keys_decide_the_shard(store: Bench) -> None:
    keyed, _, _ = await submit(store, "'h', concurrency_key => 'customer', dedupe_key => 'd'")
    deduped, _, _ = await submit(store, "'h', dedupe_key => 'ключ'")
    assert shard_of_id(keyed) == shard_of(SHARDS, "default", "customer")
    assert shard_of_id(deduped) == shard_of(SHARDS, "default", "ключ")
    free = {shard_of_id((await submit(store, "'h'"))[0]) for _ in range(40)}
    assert len(free) > 10


async def test_a_dedupe_key_leads_to_its_job(store: Bench) -> None:
    first = await submit(store, "'h', '1', dedupe_key => 'k'")
    again = await submit(store, "'h', '1', dedupe_key => 'k'")
    other = await submit(store, "'h', '2', dedupe_key => 'k'")
    assert [first, again, other] == [
        (first.job_id, True, False),
        (first.job_id, False, False),
        (first.job_id, False, True),
    ]
    elsewhere = await submit(store, "'g', '1', dedupe_key => 'k'")
    assert elsewhere.created


async def test_a_dedupe_key_is_free_when_its_time_is_over_and_its_job_gone(store: Bench) -> None:
    first = await submit(store, "'h', dedupe_key => 'k'")
    await store.sql("UPDATE dedupe_keys SET expires_at = now() - interval '1 s'")
    assert (await submit(store, "'h', dedupe_key => 'k'")).job_id == first.job_id
    await store.sql("DELETE FROM jobs")
    second = await submit(store, "'h', dedupe_key => 'k'")
    assert second.created
    assert second.job_id != first.job_id


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_of_two_transactions_with_one_key_the_second_waits_for_the_first(store: Bench, end: str) -> None:
    async with await store.connect() as first, await store.connect() as second:
        [held] = await (await first.execute(SUBMIT.format("'h', dedupe_key => 'k'").encode())).fetchall()
        waiting = asyncio.create_task(second.execute(SUBMIT.format("'h', dedupe_key => 'k'").encode()))
        await eventually(store.waiting_for_locks, what="the second waits for the first")
        await getattr(first, end)()
        [got] = await (await waiting).fetchall()
        await second.commit()
    assert got[1] is (end == "rollback")
    assert await store.sql("SELECT id FROM jobs") == [(got[0] if end == "rollback" else held[0],)]


async def test_a_storm_of_submits_with_one_key_makes_one_job(store: Bench) -> None:
    """Sessions of applications submit the same at once, and some roll back."""
    draw = random.Random(7)

    async def one(end: str) -> Got | None:
        async with await store.connect() as connection:
            [row] = await (await connection.execute(SUBMIT.format("'h', dedupe_key => 'storm'").encode())).fetchall()
            await asyncio.sleep(draw.uniform(0, 0.02))
            await getattr(connection, end)()
        return Got(*row) if end == "commit" else None

    ends = ["commit"] * 20 + ["rollback"] * 8
    draw.shuffle(ends)
    answers = [answer for answer in await asyncio.gather(*map(one, ends)) if answer is not None]
    [(job_id,)] = await store.sql("SELECT id FROM jobs")
    assert {answer.job_id for answer in answers} == {job_id}
    assert sum(answer.created for answer in answers) == 1


async def test_times_count_from_the_call_not_from_the_beginning_of_the_transaction(store: Bench) -> None:
    async with await store.connect() as connection:
        [(began,)] = await (await connection.execute("SELECT now()")).fetchall()
        await connection.execute("SELECT pg_sleep(0.05)")
        cursor = await connection.execute("SELECT job_id FROM shardwheel.submit('h', delay => '1 hour')")
        [(job_id,)] = await cursor.fetchall()
        await connection.commit()
    row = await store.row(job_id)
    assert row.created_at - began >= timedelta(milliseconds=50)
    assert row.due_at == row.created_at + timedelta(hours=1)
    past, _, _ = await submit(store, "'h', due_at => '2020-01-01Z'")
    assert (await store.row(past)).due_at == (await store.row(past)).created_at


async def test_ids_are_never_given_twice_whatever_sessions_do(store: Bench) -> None:
    """Rollbacks, sessions that come and go, nodes that take blocks: no number returns."""
    seen: list[int] = []
    async with await store.connect() as steady:
        for turn in range(30):
            async with await store.connect() as brief:
                for connection in (steady, brief, steady):
                    cursor = await connection.execute("SELECT job_id FROM shardwheel.submit('h')")
                    seen += [job_id for (job_id,) in await cursor.fetchall()]
                    await (connection.rollback() if turn % 3 == 0 else connection.commit())
            seen.append(await store.new_id())
    assert len({job_id >> 12 for job_id in seen}) == len(seen)


async def test_a_session_takes_a_new_block_of_ids_when_its_own_is_used_up_or_old(store: Bench) -> None:
    async with await store.connect() as connection:

        async def number() -> int:
            [(job_id,)] = await (await connection.execute("SELECT job_id FROM shardwheel.submit('h')")).fetchall()
            return int(job_id) >> 12

        first = await number()
        assert await number() == first + 1
        await connection.execute("SELECT setval('submit_numbers', %s)", (first + 9_998,))
        assert await number() == first + 9_999
        second = await number()
        assert second % 10_000 == 0
        assert second > first + 9_999
        await connection.execute("SELECT setval('submit_block_taken_s', extract(epoch FROM now())::bigint - 100)")
        assert await number() > second + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("''", "handler: is required (got '')"),
        ("'a b'", "handler: takes letters, digits and '._-/', 1 to 200 characters (got 'a b')"),
        ("'h', priority => 9", "priority: has to be from 1 (most urgent) to 5, or 0 for the default (got '9')"),
        ("'h', delay => '-1 s'", "delay: must not be negative (got '-00:00:01')"),
        ("'h', delay => '1 s', due_at => now()", "delay: cannot be combined with due_at; give one of them"),
        ("'h', due_at => 'infinity'", "due_at: has to be of the years 2000 to 2199 (got 'infinity')"),
        ("'h', dedupe_ttl => '1 day'", "dedupe_ttl: needs a dedupe_key"),
        ("'h', concurrency_limit => 2", "concurrency_limit: needs a concurrency_key"),
        ("'h', labels => '[1]'", "labels: has to be a JSON object of strings (got '[1]')"),
        ("'h', labels => '{\"a\": 1}'", "labels[\"a\"]: has to be a string (got '1')"),
        ("'h', non_retryable_error_types => '{A,NULL}'", "non_retryable_error_types[1]: must not be empty (got '')"),
        ("'h', total_timeout => '0'", "total_timeout: has to be above 0; leave it out for no limit (got '00:00:00')"),
        ("'h', name => E'a\\nb', max_attempts => -1", "max_attempts: has to be from 1 to 1000"),
    ],
)
async def test_refusals_name_field_value_and_remedy(store: Bench, arguments: str, said: str) -> None:
    async with await store.connect() as connection:
        with pytest.raises(psycopg.Error) as caught:
            await connection.execute(f"SELECT shardwheel.submit({arguments})".encode())
    assert caught.value.sqlstate == "SW003"
    assert said in str(caught.value)
    assert await store.sql("SELECT count(*) FROM jobs") == [(0,)]


async def test_all_problems_are_told_together(store: Bench) -> None:
    async with await store.connect() as connection:
        with pytest.raises(psycopg.Error, match=r"handler: .*; name: .*; priority: "):
            await connection.execute("SELECT shardwheel.submit('a b', name => E'\\t', priority => 6)")


async def test_what_does_not_exist_or_is_full_is_refused_by_a_state_of_its_own(store: Bench) -> None:
    async with await store.connect() as connection:
        with pytest.raises(psycopg.Error, match="there is no namespace 'elsewhere'") as caught:
            await connection.execute("SELECT shardwheel.submit('h', namespace => 'elsewhere')")
        assert caught.value.sqlstate == "SW004"
        await connection.rollback()
        await connection.execute(
            "INSERT INTO handlers (namespace_id, name) SELECT 1, 'x' || n FROM generate_series(1, 10000) n"
        )
        with pytest.raises(psycopg.Error, match="10000 handlers") as caught:
            await connection.execute("SELECT shardwheel.submit('one.more')")
        assert caught.value.sqlstate == "SW005"


@pytest.mark.parametrize("quotas", ['{"pending_jobs": 3}', '{"pending_bytes": 3}'])
async def test_quotas_of_the_namespace_hold(store: Bench, quotas: str) -> None:
    await store.sql("UPDATE namespaces SET quotas = %s", quotas)
    for handler in ("h", "g", "h"):
        assert (await submit(store, f"'{handler}', '1', concurrency_key => 'k'")).created
    kept = await submit(store, "'h', dedupe_key => 'k'") if "bytes" in quotas else None
    await store.sql("UPDATE jobs SET state = 2 WHERE id = (SELECT min(id) FROM jobs WHERE payload <> '')")
    async with await store.connect() as connection:
        with pytest.raises(psycopg.Error, match="its quota pending_") as caught:
            await connection.execute("SELECT shardwheel.submit('h', '1')")
        assert caught.value.sqlstate == "SW006"
    if kept is not None:
        assert not (await submit(store, "'h', dedupe_key => 'k'")).created


async def test_the_limit_of_payloads_is_that_of_the_nodes(store: Bench) -> None:
    await store.sql("UPDATE cluster SET max_payload_bytes = 10")
    assert (await store.sql("SELECT created FROM shardwheel.submit_bytes('h', %s)", bytes(10))) == [(True,)]
    async with await store.connect() as connection:
        with pytest.raises(psycopg.Error, match=r"payload: takes at most 10 bytes; .*got '11 bytes'"):
            await connection.execute("SELECT shardwheel.submit_bytes('h', %s)", (bytes(11),))


async def test_what_the_sessions_settings_are_does_not_matter(store: Bench) -> None:
    async with await store.connect() as connection:
        for setting in ("extra_float_digits = -3", "timezone = 'Asia/Tokyo'", "datestyle = 'German'",
                        "intervalstyle = 'iso_8601'", "bytea_output = 'escape'"):  # fmt: skip
            await connection.execute(f"SET {setting}".encode())
        at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        call = "SELECT shardwheel.submit('h', due_at => %s, multiplier => 1.2345678901234567, dedupe_key => 'k')"
        await connection.execute(call.encode(), (at,))
        await connection.commit()
    again = await submit(store, "'h', due_at => %s, multiplier => 1.2345678901234567, dedupe_key => 'k'", at)
    assert (again.created, again.differs) == (False, False)
    [(due_at, multiplier)] = await store.sql("SELECT due_at, retry_multiplier FROM jobs")
    assert (due_at, multiplier) == (at, 1.2345678901234567)
