"""Reads a history: from the journals of client, workers and processes, and from the final rows of the database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, LiteralString

import orjson
import psycopg
from psycopg.rows import dict_row

from tests.cluster.history import Answer, Cut, Execution, FinalJob, Life, Recurring, Stop, Strike, Submission
from tests.cluster.journal import Line, instant_of, number, optional_number, read_lines, text, whole

_STATES: Final = {0: "pending", 1: "running", 2: "pending", 3: "completed", 4: "failed", 5: "cancelled"}

_LIVE_WORKERS: Final[LiteralString] = (
    "SELECT name FROM shardwheel_store.workers WHERE ended_at IS NULL AND lease_until > now()"
)
_LEFT: Final[LiteralString] = (
    "SELECT (SELECT count(*) FROM shardwheel_store.jobs)"
    " + (SELECT count(*) FROM shardwheel_store.schedules WHERE next_fire_at IS NOT NULL)"
)
_JOBS: Final[LiteralString] = """
SELECT id, name, state, claim, extract(epoch FROM due_at)::float8 AS due_at, schedule_id,
    extract(epoch FROM scheduled_for)::float8 AS scheduled_for, NULL AS result
FROM shardwheel_store.jobs
UNION ALL
SELECT id, name, state, claim, extract(epoch FROM due_at)::float8, schedule_id,
    extract(epoch FROM scheduled_for)::float8, result
FROM shardwheel_store.job_history
"""
_SCHEDULES: Final[LiteralString] = "SELECT id, fired_count, skipped_counts FROM shardwheel_store.schedules"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSchedule:
    """A schedule that a test has created, and the nominal times that it asked for."""

    schedule: int
    name: str
    nominal: tuple[float, ...]
    exact: bool


def live_workers(dsn: str) -> set[str]:
    """Return the names of the workers with a lease; empty if the database is away."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=2) as connection:
            return {str(row[0]) for row in connection.execute(_LIVE_WORKERS)}
    except psycopg.OperationalError:
        return set()


def owners(dsn: str) -> dict[int, str]:
    """Return the node that owns each shard, by the database's account."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        rows = connection.execute("SELECT shard, owner FROM shardwheel_store.shards WHERE owner IS NOT NULL")
        return {int(shard): str(owner) for shard, owner in rows}


def left_to_do(dsn: str) -> int:
    """Return how many jobs are not final, and how many schedules have not ended."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        row = connection.execute(_LEFT).fetchone()
        assert row is not None
        return int(row[0])


def read_jobs(dsn: str) -> tuple[FinalJob, ...]:
    """Return all jobs of the database, live ones too."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5, row_factory=dict_row) as connection:
        return tuple(_final_job(row) for row in connection.execute(_JOBS))


def read_schedules(dsn: str, planned: Iterable[PlannedSchedule]) -> tuple[Recurring, ...]:
    """Return the schedules with the database's account of them."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        accounts = {row[0]: (row[1], row[2]) for row in connection.execute(_SCHEDULES)}
    return tuple(
        Recurring(
            schedule=one.schedule,
            name=one.name,
            nominal=one.nominal,
            exact=one.exact,
            fired=accounts[one.schedule][0],
            skipped=accounts[one.schedule][1],
        )
        for one in planned
    )


def read_executions(paths: Iterable[Path]) -> tuple[Execution, ...]:
    """Return what workers have written, in the order of their starts."""
    found: list[Execution] = []
    for path in paths:
        found += executions_of(read_lines(path))
    return tuple(sorted(found, key=lambda one: one.started))


def executions_of(lines: Iterable[Line]) -> list[Execution]:
    """Return the executions that the lines of one file tell of. Raises ValueError for an end without a start."""
    executions: list[Execution] = []
    open_at: dict[tuple[int, int, int], int] = {}
    for line in lines:
        key = (whole(line, "job"), whole(line, "claim"), whole(line, "pid"))
        if line["event"] == "start":
            open_at[key] = len(executions)
            executions.append(_started(line))
        else:
            position = open_at.pop(key, None)
            if position is None:
                raise ValueError(f"an execution has ended that has not begun: {line}")
            executions[position] = replace(executions[position], ended=instant_of(line), outcome=text(line, "outcome"))
    return executions


def read_submissions(path: Path) -> tuple[tuple[Submission, ...], tuple[Answer, ...]]:
    """Return what a client has written: what it wanted, and what was answered."""
    submissions: list[Submission] = []
    answers: list[Answer] = []
    for line in read_lines(path):
        if line["event"] == "sent":
            submissions.append(
                Submission(
                    name=text(line, "name"),
                    handler=text(line, "handler"),
                    sent=instant_of(line),
                    due_at=optional_number(line, "due_at"),
                    dedupe_key=text(line, "dedupe_key"),
                    concurrency_key=text(line, "concurrency_key"),
                    concurrency_limit=whole(line, "concurrency_limit"),
                    timeout_s=optional_number(line, "timeout_s"),
                    failures=whole(line, "failures"),
                )
            )
        elif line["event"] == "answered":
            answers.append(
                Answer(
                    name=text(line, "name"),
                    job=whole(line, "job"),
                    created=bool(line["created"]),
                    differs=bool(line["differs"]),
                    at=instant_of(line),
                )
            )
    return tuple(submissions), tuple(answers)


def read_lives(path: Path) -> tuple[Life, ...]:
    """Return the runs of the processes."""
    return lives_of(read_lines(path))


def lives_of(lines: Iterable[Line]) -> tuple[Life, ...]:
    """Return the runs of the processes that the lines of their journal tell of."""
    lives: dict[tuple[str, int], Life] = {}
    for line in lines:
        event, process = text(line, "event"), text(line, "process")
        if event in ("strike", "severed", "joined"):
            continue
        key, at = (process, whole(line, "pid")), instant_of(line)
        if event == "started":
            lives[key] = Life(kind=text(line, "kind"), process=process, pid=key[1], started=at)
            continue
        life = lives[key]
        match event:
            case "killed":
                lives[key] = replace(life, killed=at)
            case "terminated":
                lives[key] = replace(life, terminated=life.terminated or at)
            case "gone":
                lives[key] = replace(life, gone=at)
            case "paused":
                # One that is stopped twice goes on at the first word.
                if not life.stops or life.stops[-1].ended is not None:
                    lives[key] = replace(life, stops=(*life.stops, Stop(began=at)))
            case "resumed":
                # A process may be told to go on without having been stopped.
                if life.stops and life.stops[-1].ended is None:
                    ended = replace(life.stops[-1], ended=at)
                    lives[key] = replace(life, stops=(*life.stops[:-1], ended))
            case _:
                raise ValueError(f"unknown event in {line}")
    return tuple(lives.values())


def read_cuts(path: Path) -> tuple[Cut, ...]:
    """Return the times in which the network was broken. Overlapping ones of one pair are told one by one."""
    cuts: list[Cut] = []
    for line in read_lines(path):
        if line["event"] not in ("severed", "joined"):
            continue
        source, target, at = text(line, "source"), text(line, "target"), instant_of(line)
        if line["event"] == "severed":
            cuts.append(Cut(source=source, target=target, began=at))
            continue
        position = next(
            number for number, one in enumerate(cuts) if (one.source, one.target, one.ended) == (source, target, None)
        )
        cuts[position] = replace(cuts[position], ended=at)
    return tuple(cuts)


def read_strikes(path: Path) -> tuple[Strike, ...]:
    """Return the faults that have struck."""
    return tuple(
        Strike(fault=text(line, "fault"), victim=text(line, "process"), at=instant_of(line))
        for line in read_lines(path)
        if line["event"] == "strike"
    )


def _started(line: Line) -> Execution:
    return Execution(
        job=whole(line, "job"),
        claim=whole(line, "claim"),
        attempt=whole(line, "attempt"),
        handler=text(line, "handler"),
        worker=text(line, "worker"),
        pid=whole(line, "pid"),
        claimed_at=number(line, "claimed_at"),
        started=instant_of(line),
    )


def _final_job(row: Line) -> FinalJob:
    result = row["result"]
    proof: Line = orjson.loads(result) if isinstance(result, bytes) and result else {}
    return FinalJob(
        job=whole(row, "id"),
        name=text(row, "name"),
        state=_STATES[whole(row, "state")],
        claim=whole(row, "claim"),
        due_at=number(row, "due_at"),
        schedule=None if row["schedule_id"] is None else whole(row, "schedule_id"),
        scheduled_for=optional_number(row, "scheduled_for"),
        result_claim=whole(proof, "claim") if proof else None,
        result_pid=whole(proof, "pid") if proof else None,
    )


def running_throughout(executions: Sequence[Execution], *, began: float, ended: float) -> list[Execution]:
    """Return the executions that lasted from before `began` to after `ended`, by the monotonic clock."""
    return [one for one in executions if one.started.mono < began and one.ended is not None and one.ended.mono > ended]
