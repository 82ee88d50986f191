"""`shardwheel.submit_bytes` and SubmitJob accept and refuse the same, and store the same row."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import grpc
import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Json

from shardwheel.v1 import admin_service_pb2 as admin_pb
from shardwheel.v1 import job_service_pb2 as pb
from shardwheel.v1.job_pb2 import JobSpec, RetryPolicy, Timeouts
from tests.integration.api.node import ApiNode
from tests.support.thoroughness import examples

Arguments = dict[str, Any]

CALL: Final = "SELECT job_id, created, differs FROM shardwheel.submit_bytes({})"
# What the two ways of submitting the same cannot have in common.
OWN: Final = {"id", "shard", "created_at", "due_at", "deadline_at", "expires_at"}

TEXT: Final = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\0"), max_size=6
) | st.sampled_from(["", "k", 'a"b\\c', "a" * 200, "é☃𝄞"])
WORD: Final = TEXT.filter(bool)
SPANS: Final = st.sampled_from(
    [timedelta(milliseconds=1), timedelta(microseconds=1500), timedelta(seconds=20), timedelta(hours=3)]
)
ODD_TEXT: Final = st.sampled_from(["a" * 201, "\x7f", "\x01", "a\nb", "é", ""])
ODD_SPANS: Final = st.sampled_from(
    [timedelta(0), timedelta(seconds=-1), timedelta(days=30), timedelta(days=30, microseconds=1), timedelta(days=3660),
     timedelta(days=3660, seconds=1)]
)  # fmt: skip
ODD_NUMBERS: Final = st.sampled_from([0, 6, 1000, 1001, 10_000, 10_001]) | st.integers(-3, 20_000)
GOOD_TRACE: Final = f"00-{'1' * 32}-{'2' * 16}-01"

GOOD: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "handler": st.sampled_from(["h", "with.defaults", "with.defaults", "a/b_c-D.9"]),
    "namespace": st.sampled_from(["", "default", "tenant"]),
    "payload": st.binary(max_size=20),
    "content_type": st.sampled_from(["", "application/json", "text/plain; charset=utf-8"]),
    "name": TEXT,
    "priority": st.integers(0, 5),
    # The bounds have to be naive.
    "due_at": st.datetimes(datetime(2000, 1, 1), datetime(2199, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    "delay": SPANS,
    "dedupe_key": WORD,
    "dedupe_ttl": SPANS,
    "concurrency_key": WORD,
    "concurrency_limit": st.integers(0, 20),
    "labels": st.dictionaries(WORD.filter(lambda key: len(key) < 64), TEXT, max_size=3),
    "max_attempts": st.integers(0, 20),
    "initial_delay": SPANS,
    "multiplier": st.sampled_from([0.0, 1.0, 2.0, 100.0]) | st.floats(1, 100),
    "max_delay": SPANS,
    "non_retryable_error_types": st.lists(WORD, max_size=3),
    "start_timeout": SPANS,
    "attempt_timeout": SPANS,
    "total_timeout": SPANS,
    "traceparent": st.sampled_from(["", GOOD_TRACE]),
}
ODD: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    **dict.fromkeys(("handler", "name", "dedupe_key", "concurrency_key", "content_type"), ODD_TEXT),
    **dict.fromkeys(("priority", "concurrency_limit", "max_attempts"), ODD_NUMBERS),
    **dict.fromkeys([name for name, strategy in GOOD.items() if strategy is SPANS], ODD_SPANS),
    "namespace": st.sampled_from(["nowhere", "No", "-", "a" * 64, "a\n"]),
    "payload": st.sampled_from([bytes(256 * 1024), bytes(256 * 1024 + 1)]),
    "due_at": st.sampled_from([datetime(1999, 12, 31, 23, 59, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)]),
    "labels": st.dictionaries(ODD_TEXT, ODD_TEXT, max_size=2)
    | st.sampled_from([{str(n): "x" for n in range(32)}, {str(n): "x" for n in range(33)}, {"a" * 64: ""}]),
    "multiplier": st.sampled_from([100.5, 0.5, -1.0, float("nan"), float("inf")]),
    "non_retryable_error_types": st.lists(ODD_TEXT, max_size=2) | st.sampled_from([["E"] * 100, ["E"] * 101]),
    "traceparent": st.sampled_from(
        [f"00-{'0' * 32}-{'2' * 16}-01", "00-1-2-01", GOOD_TRACE.upper(), GOOD_TRACE + "\n"]
    ),
}


@st.composite
def arguments(draw: st.DrawFn) -> Arguments:
    """Draw the arguments of a submit: good ones, of which one may be odd. A due time comes in one form only."""
    names = draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=10, unique=True))
    given = {name: draw(GOOD[name]) for name in {"handler": None, "namespace": None, **dict.fromkeys(names)}}
    for one, needed in (("dedupe_ttl", "dedupe_key"), ("concurrency_limit", "concurrency_key")):
        if needed not in given:
            given.pop(one, None)
    if draw(st.booleans()):
        odd = draw(st.sampled_from(sorted(ODD)))
        given[odd] = draw(ODD[odd])
    if "due_at" in given:
        given.pop("delay", None)
    return given


def duration(value: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(value)
    return message


def request(given: Arguments) -> pb.SubmitJobRequest:
    """The same submit as a message."""
    plain = {"handler", "payload", "content_type", "name", "priority", "dedupe_key", "concurrency_key",
             "concurrency_limit", "labels", "traceparent"}  # fmt: skip
    spec = JobSpec(**{name: value for name, value in given.items() if name in plain})
    if "due_at" in given:
        instant = Timestamp()
        instant.FromDatetime(given["due_at"])
        spec.due_at.CopyFrom(instant)
    for name in ("delay", "dedupe_ttl"):
        if name in given:
            getattr(spec, name).CopyFrom(duration(given[name]))
    retry: RetryPolicy = spec.retry
    for name in ("max_attempts", "multiplier"):
        if name in given:
            setattr(retry, name, given[name])
    retry.non_retryable_error_types.extend(given.get("non_retryable_error_types", []))
    for target, names in (
        (retry, ("initial_delay", "max_delay")),
        (spec.timeouts, ("start_timeout", "attempt_timeout", "total_timeout")),
    ):
        for name in names:
            if name in given:
                part: RetryPolicy | Timeouts = target
                getattr(part, name).CopyFrom(duration(given[name]))
    return pb.SubmitJobRequest(namespace=given["namespace"], job=spec)


def call(given: Arguments) -> tuple[str, list[object]]:
    """The same submit as a statement."""
    values = {"payload": b"", **given}
    if "labels" in values:
        values["labels"] = Json(values["labels"])
    casts = {"labels": "::jsonb", "multiplier": "::float8", "non_retryable_error_types": "::text[]"}
    said = ", ".join(f"{name} => %s{casts.get(name, '')}" for name in values)
    return CALL.format(said), list(values.values())


class Submits:
    """Submits by both ways, each in its own database connection."""

    def __init__(self, node: ApiNode, connection: psycopg.AsyncConnection[Any]) -> None:
        self._node = node
        self._connection = connection

    async def forget(self) -> None:
        """Remove all jobs and keys."""
        for table in ("jobs", "dedupe_keys"):
            await self._connection.execute(f"DELETE FROM shardwheel_store.{table}".encode())

    async def by_api(self, given: Arguments) -> tuple[int, bool, bool] | str:
        try:
            answer = await self._node.jobs.SubmitJob(request(given), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return answer.job.id, answer.created, answer.differs

    async def by_sql(self, given: Arguments) -> tuple[int, bool, bool] | str:
        names = {"SW003": "INVALID_ARGUMENT", "SW004": "NOT_FOUND"}
        statement, params = call(given)
        try:
            [row] = await (await self._connection.execute(statement.encode(), params)).fetchall()
        except psycopg.Error as error:
            return names[error.sqlstate or ""]
        return row[0], row[1], row[2]

    async def stored(self, job_id: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The row of a job as far as it depends on the submit, with times counted from its due time; its key."""
        database = self._node.database
        [row] = await database.fetch("SELECT * FROM jobs WHERE id = %s", (job_id,))
        found = row._asdict()
        kept = {name: value for name, value in found.items() if name not in OWN}
        for name in ("deadline_at", "expires_at"):
            kept[name] = found[name] and found[name] - found["due_at"]
        # A given due time in the future lies at another distance from each of the two submits.
        absolute = found["due_at"] - found["created_at"] > timedelta(days=1)
        kept["delay"] = "absolute" if absolute else found["due_at"] - found["created_at"]
        keys = await database.fetch("SELECT * FROM dedupe_keys WHERE job_id = %s", (job_id,))
        if not keys:
            return kept, None
        key = keys[0]._asdict()
        return kept, {
            **{name: key[name] for name in ("namespace_id", "handler_id", "concurrency_key", "key", "content_hash")},
            "ttl": key["expires_at"] - found["created_at"],
            "sweep": "due" if absolute else key["sweep_at"] - found["created_at"],
        }


@pytest.fixture
async def submits(node: ApiNode, database: str) -> Any:
    retry = RetryPolicy(max_attempts=9, max_delay=Duration(seconds=10))
    await node.admin.CreateNamespace(admin_pb.CreateNamespaceRequest(namespace="tenant", retry=retry), timeout=20)
    await node.database.run(
        "INSERT INTO handlers (namespace_id, name, defaults) SELECT id, 'with.defaults', "
        """'{"initial_ms": 15000, "attempt_ms": 70, "non_retryable": ["Bad"]}' FROM namespaces"""
    )
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        yield Submits(node, connection)


@settings(
    max_examples=examples(1500),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(given=arguments())
async def test_sql_and_the_api_accept_and_store_the_same(submits: Submits, given: Arguments) -> None:
    await submits.forget()
    by_sql = await submits.by_sql(given)
    if isinstance(by_sql, str):
        assert by_sql == await submits.by_api(given), given
        return
    sql_row, sql_key = await submits.stored(by_sql[0])
    if given.get("dedupe_key"):
        # The key leads to the job that SQL stored, and the contents are recognised as the same.
        assert await submits.by_api(given) == (by_sql[0], False, False), given
        await submits.forget()
    by_api = await submits.by_api(given)
    assert not isinstance(by_api, str), (by_api, given)
    assert by_api[1:] == by_sql[1:] == (True, False)
    assert (sql_row, sql_key) == await submits.stored(by_api[0]), given
