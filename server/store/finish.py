"""Ending attempts: jobs leave for the history, or go back to pending.

A finish is keyed on (id, open claim) and so exact by itself: any node may commit it. What a worker reports also has to
be about an attempt of its own. The reaper's variants add the fence and check again, inside the statement, the reason
for which they act. Every statement locks its rows in id order first.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, LiteralString, assert_never

from server.domain.ending import ANY_LEASE, Ended, FencedEnds, Recheck
from server.domain.job import AttemptRef, Backoff, JobState
from server.domain.outcome import AttemptFacts, Finish, Requeue
from server.store.arrays import BoolArray, ByteaArray, Int2Array, Int4Array, Int8Array, TextArray
from server.store.database import Database, Row, Statement
from server.store.fence import FENCE
from server.store.insert import milliseconds
from server.store.partitions import run_history

# `state + 0`: no partial index fits, so that whatever the statistics say, rows are found by their ids alone.
_RECHECKS: Final[dict[Recheck, LiteralString]] = {
    Recheck.OPEN: "AND j.state + 0 = 1",
    Recheck.WORKER_LOST: (
        "AND j.state + 0 = 1 AND EXISTS (SELECT FROM workers k WHERE k.id = j.worker_id"
        " AND (k.lease_until < LEAST(now(), %s::timestamptz) OR k.lost_at IS NOT NULL OR k.ended_at IS NOT NULL))"
    ),
    Recheck.TIMED_OUT: "AND j.state + 0 = 1 AND j.timeout_at <= now() - %s::int8 * interval '1 millisecond'",
    Recheck.NOT_STARTED: "AND j.state + 0 = 1 AND j.worker_id < 0 AND j.timeout_at <= now()",
}

_HISTORY_COLUMNS: Final[LiteralString] = """id, due_at, created_at, started_at, claim, worker_id, schedule_id,
    scheduled_for, deadline_at, retry_initial_ms, retry_max_ms, attempt_timeout_ms, start_timeout_ms, total_timeout_ms,
    retry_multiplier, shard, handler_id, namespace_id, attempt, max_attempts, concurrency_limit, priority, name,
    content_type, concurrency_key, labels, traceparent, non_retryable, payload, progress"""

_ENDED: Final[LiteralString] = (
    "id, claim, shard, handler_id, worker_id, namespace_id, concurrency_key, schedule_id, priority, due_at"
)

_FINISH: Final[LiteralString] = (
    """locked AS (
    SELECT j.id, w.claim, w.state, w.result, w.content_type, w.error_type, w.message, w.outcome
    FROM unnest(%s::int8[], %s::int8[], %s::int8[], %s::int2[], %s::bytea[], %s::text[], %s::text[], %s::text[],
                %s::int2[])
        AS w(id, claim, worker_id, state, result, content_type, error_type, message, outcome)
    JOIN {jobs} j ON j.id = w.id AND j.open_claim = w.claim AND j.worker_id = COALESCE(w.worker_id, j.worker_id)
    <fence>
    WHERE true <recheck>
    ORDER BY j.id FOR UPDATE OF j),
gone AS (DELETE FROM {jobs} j USING locked l WHERE j.id = l.id RETURNING j.*),
noted AS (
    INSERT INTO attempts (job_id, claim, attempt, worker_id, started_at, ended_at, outcome, error_type, error_message)
    SELECT g.id, l.claim, g.attempt, g.worker_id, g.started_at, now(), l.outcome, l.error_type, l.message
    FROM gone g JOIN locked l ON l.id = g.id WHERE l.outcome IS NOT NULL),
kept AS (
    INSERT INTO job_history (state, finished_at, result, result_content_type, error_type, error_message, """
    + _HISTORY_COLUMNS
    + """)
    SELECT l.state, now(), l.result, l.content_type, l.error_type,
        CASE WHEN l.state = 5 AND g.error_type = 'cancelled' THEN g.error_message ELSE l.message END, """
    + ", ".join("g." + name.strip() for name in _HISTORY_COLUMNS.split(","))
    + """
    FROM gone g JOIN locked l ON l.id = g.id
    RETURNING """
    + _ENDED
    + """, state)
"""
)

# A job whose cancel was asked for goes back no more: who decided so did not know yet, and decides again.
_REQUEUE: Final[LiteralString] = (
    """locked AS (
    SELECT j.id, w.claim, w.delay_ms, w.burn, w.keep_open, w.started, w.error_type, w.message, w.outcome,
        j.worker_id AS held_by
    FROM unnest(%s::int8[], %s::int8[], %s::int8[], %s::int8[], %s::bool[], %s::bool[], %s::bool[], %s::text[],
                %s::text[], %s::int2[])
        AS w(id, claim, worker_id, delay_ms, burn, keep_open, started, error_type, message, outcome)
    JOIN {jobs} j ON j.id = w.id AND j.open_claim = w.claim AND j.worker_id = COALESCE(w.worker_id, j.worker_id)
    <fence>
    WHERE NOT j.cancel_requested <recheck>
    ORDER BY j.id FOR UPDATE OF j),
kept AS (
    UPDATE {jobs} j
    SET state = 0, worker_id = CASE WHEN l.keep_open THEN j.worker_id END, timeout_at = NULL, cancel_requested = false,
        open_claim = CASE WHEN l.keep_open THEN j.open_claim END,
        attempt = CASE WHEN l.burn THEN j.attempt ELSE GREATEST(j.attempt - 1, 0) END,
        due_at = CASE WHEN l.delay_ms IS NULL THEN j.due_at ELSE now() + l.delay_ms * interval '1 millisecond' END,
        expires_at = CASE WHEN NOT l.started AND j.attempt = 1
            THEN LEAST(j.due_at + j.start_timeout_ms * interval '1 millisecond', j.deadline_at)
            ELSE j.deadline_at END,
        error_type = COALESCE(l.error_type, j.error_type), error_message = COALESCE(l.message, j.error_message)
    FROM locked l WHERE j.id = l.id
    RETURNING """
    + ", ".join("j." + name.strip() for name in _ENDED.split(","))
    + """, 0::int2 AS state, l.outcome, l.error_type AS new_error_type, l.message, l.held_by, j.attempt,
        j.started_at),
noted AS (
    INSERT INTO attempts (job_id, claim, attempt, worker_id, started_at, ended_at, outcome, error_type, error_message)
    SELECT k.id, k.claim, k.attempt, k.held_by, k.started_at, now(), k.outcome, k.new_error_type, k.message
    FROM kept k WHERE k.outcome IS NOT NULL)
"""
)


def _plain(body: LiteralString) -> Statement:
    text = body.replace("<fence>", "").replace("<recheck>", "")
    return Statement("WITH " + text + "SELECT " + _ENDED + ", state FROM kept")


def _fenced(body: LiteralString, recheck: Recheck) -> Statement:
    text = body.replace("<fence>", "JOIN me ON me.shard = j.shard").replace("<recheck>", _RECHECKS[recheck])
    return Statement(
        "WITH "
        + FENCE
        + ",\n"
        + text
        + "SELECT me.shard AS live, "
        + _ENDED.replace("shard", "kept.shard", 1)
        + ", state FROM me LEFT JOIN kept ON kept.shard = me.shard"
    )


FINISH: Final = _plain(_FINISH)
REQUEUE: Final = _plain(_REQUEUE)
FENCED_FINISH: Final = {recheck: _fenced(_FINISH, recheck) for recheck in Recheck}
FENCED_REQUEUE: Final = {recheck: _fenced(_REQUEUE, recheck) for recheck in Recheck}

_FACTS: Final[LiteralString] = """j.id, j.open_claim, j.handler_id, j.attempt, j.max_attempts, j.retry_initial_ms,
    j.retry_multiplier, j.retry_max_ms, j.non_retryable, j.deadline_at, j.cancel_requested"""

LOAD_FACTS: Final = Statement(
    "SELECT now(), "
    + _FACTS
    + """
    FROM unnest(%s::int8[], %s::int8[]) AS w(id, claim) JOIN {jobs} j ON j.id = w.id AND j.open_claim = w.claim"""
)

STILL_THERE: Final = Statement(
    "SELECT j.id, j.open_claim FROM unnest(%s::int8[]) AS w(id) JOIN {jobs} j ON j.id = w.id"
)


async def finish(database: Database, partition: int, finishes: Sequence[Finish]) -> list[Ended]:
    """Move jobs to the history whose open claim is the given one; the others are left out of the answer."""
    return [_ended(row) for row in await run_history(database, FINISH.on(partition), _finish_params(finishes))]


async def requeue(database: Database, partition: int, requeues: Sequence[Requeue]) -> list[Ended]:
    """Give jobs back whose open claim is the given one, unless their cancel was asked for; the answer says which."""
    return [_ended(row) for row in await run_history(database, REQUEUE.on(partition), _requeue_params(requeues))]


async def fenced_finish(
    database: Database,
    partition: int,
    epochs: Sequence[tuple[int, int]],
    finishes: Sequence[Finish],
    recheck: Recheck,
    grace: timedelta = timedelta(0),
    as_of: datetime = ANY_LEASE,
) -> FencedEnds:
    """Like `finish`, fenced, and only for rows that still meet `recheck`.

    TIMED_OUT: for at least `grace`; NOT_STARTED: published, and over the time in which it has to be started;
    WORKER_LOST: by a lease that was over at `as_of`, or a worker that is lost or has ended.
    """
    params = (*_fence_params(epochs), *_finish_params(finishes), *_recheck_params(recheck, grace, as_of))
    return _fenced_ends(await run_history(database, FENCED_FINISH[recheck].on(partition), params))


async def fenced_requeue(
    database: Database,
    partition: int,
    epochs: Sequence[tuple[int, int]],
    requeues: Sequence[Requeue],
    recheck: Recheck,
    grace: timedelta = timedelta(0),
    as_of: datetime = ANY_LEASE,
) -> FencedEnds:
    """Like `requeue`, fenced, and only for rows that still meet `recheck`, as `fenced_finish` does."""
    params = (*_fence_params(epochs), *_requeue_params(requeues), *_recheck_params(recheck, grace, as_of))
    return _fenced_ends(await run_history(database, FENCED_REQUEUE[recheck].on(partition), params))


async def load_facts(
    database: Database, partition: int, refs: Sequence[AttemptRef]
) -> tuple[datetime | None, dict[AttemptRef, AttemptFacts]]:
    """Return the database clock and the facts of those attempts that are still open."""
    params = (Int8Array([ref.job_id for ref in refs]), Int8Array([ref.claim for ref in refs]))
    rows = await database.run(LOAD_FACTS.on(partition), params)
    facts = [facts_of(row[1:]) for row in rows]
    return (rows[0][0] if rows else None), {one.ref: one for one in facts}


async def still_there(database: Database, partition: int, job_ids: Sequence[int]) -> dict[int, int | None]:
    """Return those jobs that have not left, with their open claims: their results are stale, the others' duplicates."""
    return dict(await database.run(STILL_THERE.on(partition), (Int8Array(job_ids),)))


def facts_of(row: Row) -> AttemptFacts:
    """Build facts from the columns of `_FACTS`."""
    (
        job_id,
        claim,
        handler_id,
        attempt,
        max_attempts,
        initial,
        multiplier,
        maximum,
        non_retryable,
        deadline_at,
        cancelled,
    ) = row
    return AttemptFacts(
        ref=AttemptRef(job_id, claim),
        handler_id=handler_id,
        attempt=attempt,
        backoff=Backoff(
            max_attempts=max_attempts,
            initial=timedelta(milliseconds=initial),
            multiplier=multiplier,
            maximum=timedelta(milliseconds=maximum),
            non_retryable=tuple(non_retryable or ()),
        ),
        deadline_at=deadline_at,
        cancel_requested=cancelled,
    )


def _ended(row: Row) -> Ended:
    job_id, claim, shard, handler_id, worker_id, namespace_id, key, schedule_id, priority, due_at, state = row
    return Ended(
        ref=AttemptRef(job_id, claim),
        shard=shard,
        handler_id=handler_id,
        worker_id=worker_id,
        namespace_id=namespace_id,
        concurrency_key=key,
        schedule_id=schedule_id,
        state=JobState(state),
        priority=priority,
        due_at=due_at,
    )


def _fenced_ends(rows: list[Row]) -> FencedEnds:
    return FencedEnds(
        ended=[_ended(row[1:]) for row in rows if row[1] is not None],
        live_shards=frozenset(row[0] for row in rows),
    )


def _fence_params(epochs: Sequence[tuple[int, int]]) -> tuple[object, ...]:
    return Int4Array([shard for shard, _ in epochs]), Int8Array([epoch for _, epoch in epochs])


def _recheck_params(recheck: Recheck, grace: timedelta, as_of: datetime) -> tuple[object, ...]:
    match recheck:
        case Recheck.OPEN | Recheck.NOT_STARTED:
            return ()
        case Recheck.WORKER_LOST:
            return (as_of,)
        case Recheck.TIMED_OUT:
            return (milliseconds(grace),)
        case _:
            assert_never(recheck)


def _finish_params(finishes: Sequence[Finish]) -> tuple[object, ...]:
    return (
        Int8Array([one.ref.job_id for one in finishes]),
        Int8Array([one.ref.claim for one in finishes]),
        Int8Array([one.worker_id for one in finishes]),
        Int2Array([int(one.state) for one in finishes]),
        ByteaArray([one.result for one in finishes]),
        TextArray([one.content_type for one in finishes]),
        TextArray([one.error_type for one in finishes]),
        TextArray([one.message for one in finishes]),
        Int2Array([None if one.outcome is None else int(one.outcome) for one in finishes]),
    )


def _requeue_params(requeues: Sequence[Requeue]) -> tuple[object, ...]:
    return (
        Int8Array([one.ref.job_id for one in requeues]),
        Int8Array([one.ref.claim for one in requeues]),
        Int8Array([one.worker_id for one in requeues]),
        Int8Array([milliseconds(one.delay) for one in requeues]),
        BoolArray([one.burn for one in requeues]),
        BoolArray([one.keep_open for one in requeues]),
        BoolArray([one.started for one in requeues]),
        TextArray([one.error_type for one in requeues]),
        TextArray([one.message for one in requeues]),
        Int2Array([None if one.outcome is None else int(one.outcome) for one in requeues]),
    )
