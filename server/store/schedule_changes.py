"""Changing definitions of schedules: many at once, all or none.

One transaction locks the names and then the schedules, both in order, asks a pure decision what is to become of each,
and applies that. Whoever changes a schedule otherwise (a firing, a pause) waits for it, or is seen by it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import orjson
from psycopg import AsyncCursor

from server.domain.schedule_change import Creation, Removal, Revision, ScheduleChange
from server.domain.sharding import make_id, shard_of, shard_of_id
from server.domain.stored_schedule import ScheduleDefinition, StoredSchedule
from server.store.arrays import (
    BoolArray,
    ByteaArray,
    InstantArray,
    Int2Array,
    Int4Array,
    Int8Array,
    JsonbArray,
    TextArray,
)
from server.store.database import Connection, Database, Statement
from server.store.errors import Unavailable
from server.store.insert import IdBlock
from server.store.schedule_documents import job_to_document, timing_to_document
from server.store.schedules import COLUMNS, end_of_prefix, stored_schedule

Cursor: TypeAlias = AsyncCursor[Any]
T = TypeVar("T")

# What is to become of schedules: from the database clock and the existing ones by name.
Decide: TypeAlias = Callable[[datetime, Mapping[str, StoredSchedule]], Sequence[ScheduleChange]]
# Names of schedules, each with the size of the payload that its own is compared with; None if it is needed as it is.
# A payload of another size is shown to `Decide` as some payload that differs.
Named: TypeAlias = Mapping[str, int | None]

# Schedules that one change may delete by a prefix.
MAX_PRUNED: Final = 5000
_ROUNDS: Final = 5
# The size of no payload.
_NO_SIZE: Final = -1

WITH_PREFIX: Final = """
SELECT name FROM schedule_names
WHERE namespace_id = %s AND name >= %s AND (%s::text IS NULL OR name < %s::text) LIMIT %s::int8
"""
LOCK_NAMES: Final = """
SELECT name, schedule_id FROM schedule_names
WHERE namespace_id = %s AND name = ANY (%s::text[]) ORDER BY name FOR UPDATE
"""
# A payload is only read if it may be the same as the new one, which a size tells; else one that differs stands for it.
LOCK_SCHEDULES: Final = (
    "SELECT "
    + COLUMNS
    + """, CASE WHEN w.size IS NULL OR octet_length(s.payload) = w.size THEN s.payload
                WHEN w.size = 0 THEN '?'::bytea ELSE ''::bytea END
    FROM unnest(%s::int8[], %s::int4[], %s::int4[]) AS w(id, shard, size)
    JOIN schedules s ON s.id = w.id AND s.shard = w.shard
    ORDER BY s.id FOR UPDATE OF s"""
)
TAKE_NAMES: Final = """
INSERT INTO schedule_names (namespace_id, name, schedule_id, handler_id)
SELECT %s, w.name, w.id, w.handler_id
FROM unnest(%s::text[], %s::int8[], %s::int4[]) AS w(name, id, handler_id) ORDER BY w.name
ON CONFLICT (namespace_id, name) DO NOTHING
RETURNING name
"""
MOVE_NAMES: Final = """
UPDATE schedule_names n SET handler_id = w.handler_id
FROM unnest(%s::int8[], %s::int4[]) AS w(id, handler_id)
WHERE n.schedule_id = w.id AND n.handler_id <> w.handler_id
"""
DROP_NAMES: Final = "DELETE FROM schedule_names WHERE schedule_id = ANY (%s::int8[])"

INSERT: Final = Statement("""
INSERT INTO {schedules} (id, shard, namespace_id, name, created_at, updated_at, handler_id, next_fire_at, paused,
    overlap, catch_up, catch_up_window_ms, jitter_ms, start_at, end_at, timing, job, payload)
SELECT w.id, (w.id & 4095)::int4, w.namespace_id, w.name, w.created_at, w.created_at, w.handler_id, w.next_fire_at,
    w.paused, w.overlap, w.catch_up, w.catch_up_window_ms, w.jitter_ms, w.start_at, w.end_at, w.timing, w.job, w.payload
FROM unnest(%s::int4[], %s::text[], %s::timestamptz[], %s::int8[], %s::int4[], %s::timestamptz[], %s::bool[],
            %s::int2[], %s::int2[], %s::int8[], %s::int8[], %s::timestamptz[], %s::timestamptz[], %s::jsonb[],
            %s::jsonb[], %s::bytea[])
    AS w(namespace_id, name, created_at, id, handler_id, next_fire_at, paused, overlap, catch_up, catch_up_window_ms,
         jitter_ms, start_at, end_at, timing, job, payload)
""")
UPDATE: Final = Statement("""
UPDATE {schedules} s
SET handler_id = w.handler_id, next_fire_at = w.next_fire_at, paused = w.paused,
    pause_note = CASE WHEN w.paused THEN s.pause_note ELSE '' END,
    overlap = w.overlap, catch_up = w.catch_up, catch_up_window_ms = w.catch_up_window_ms, jitter_ms = w.jitter_ms,
    start_at = w.start_at, end_at = w.end_at, timing = w.timing, job = w.job, payload = w.payload,
    skipped_counts = w.skipped_counts, version = s.version + 1,
    updated_at = CASE WHEN w.redefined THEN now() ELSE s.updated_at END
FROM unnest(%s::jsonb[], %s::bool[], %s::int8[], %s::int4[], %s::timestamptz[], %s::bool[], %s::int2[], %s::int2[],
            %s::int8[], %s::int8[], %s::timestamptz[], %s::timestamptz[], %s::jsonb[], %s::jsonb[], %s::bytea[])
    AS w(skipped_counts, redefined, id, handler_id, next_fire_at, paused, overlap, catch_up, catch_up_window_ms,
         jitter_ms, start_at, end_at, timing, job, payload)
WHERE s.id = w.id AND s.shard = (w.id & 4095)::int4
""")
DELETE: Final = Statement("DELETE FROM {schedules} s WHERE s.id = ANY (%s::int8[])")


class TooManyPruned(Exception):
    """More schedules start with the prefix than one change may delete."""

    def __init__(self, prefix: str) -> None:
        super().__init__(f"more than {MAX_PRUNED} schedules start with {prefix!r}")
        self.prefix = prefix


class _NameTaken(Exception):
    """Somebody created a schedule of the name meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    schedule_id: int
    creation: Creation


class ScheduleChanges:
    """Creates, changes and deletes schedules by decisions made under lock."""

    def __init__(self, database: Database, ids: IdBlock, partition_of: Sequence[int]) -> None:
        self._database = database
        self._ids = ids
        self._partition_of = partition_of
        self._shards = len(partition_of)

    async def change(
        self, namespace_id: int, namespace: str, names: Named, decide: Decide, *, prune_prefix: str = ""
    ) -> list[tuple[ScheduleChange, int]]:
        """Lock the schedules of `names` (and of all that start with `prune_prefix`), decide, apply all or nothing.

        `decide` may be called several times. Return its decisions, each with the id of the schedule. Whatever `decide`
        raises is passed on, with nothing changed. Raise TooManyPruned.
        """
        for _ in range(_ROUNDS):
            try:
                return await self._change(namespace_id, namespace, names, decide, prune_prefix)
            except _NameTaken:
                continue
        raise Unavailable("the names of the schedules are being created and deleted all the time")

    async def dry_run(
        self, namespace_id: int, names: Named, decide: Decide, *, prune_prefix: str = ""
    ) -> list[ScheduleChange]:
        """Return what `change` would do."""

        async def work(connection: Connection) -> list[ScheduleChange]:
            cursor = connection.cursor(binary=True)
            now, existing = await _lock(cursor, namespace_id, names, prune_prefix)
            return list(decide(now, existing))

        return await self._database.transact(work)

    async def _change(
        self, namespace_id: int, namespace: str, names: Named, decide: Decide, prune_prefix: str
    ) -> list[tuple[ScheduleChange, int]]:
        sequences = await self._ids.take(len(names))

        async def work(connection: Connection) -> list[tuple[ScheduleChange, int]]:
            cursor = connection.cursor(binary=True)
            now, existing = await _lock(cursor, namespace_id, names, prune_prefix)
            free = iter(sequences)
            decided: list[tuple[ScheduleChange, int]] = []
            for change in decide(now, existing):
                if isinstance(change, Creation):
                    shard = shard_of_schedule(self._shards, namespace, change)
                    decided.append((change, make_id(next(free), shard)))
                else:
                    decided.append((change, change.stored.schedule_id))
            await self._apply(cursor, namespace_id, decided)
            return decided

        return await self._database.transact(work)

    async def _apply(self, cursor: Cursor, namespace_id: int, decided: Sequence[tuple[ScheduleChange, int]]) -> None:
        created = [_Placed(schedule_id=number, creation=one) for one, number in decided if isinstance(one, Creation)]
        revised = [one for one, _ in decided if isinstance(one, Revision)]
        removed = [one.stored.schedule_id for one, _ in decided if isinstance(one, Removal)]
        if created:
            await _take_names(cursor, namespace_id, created)
        if revised:
            ids = Int8Array([one.stored.schedule_id for one in revised])
            await cursor.execute(MOVE_NAMES, (ids, Int4Array([one.definition.job.handler_id for one in revised])))
        if removed:
            await cursor.execute(DROP_NAMES, (Int8Array(removed),))
        for partition, placed in self._by_partition(created, lambda one: one.schedule_id):
            await cursor.execute(INSERT.on(partition), _insert_params(placed))
        for partition, revisions in self._by_partition(revised, lambda one: one.stored.schedule_id):
            await cursor.execute(UPDATE.on(partition), _update_params(revisions))
        for partition, ids_there in self._by_partition(removed, lambda one: one):
            await cursor.execute(DELETE.on(partition), (Int8Array(ids_there),))

    def _by_partition(self, items: Iterable[T], id_of: Callable[[T], int]) -> list[tuple[int, list[T]]]:
        groups: dict[int, list[T]] = {}
        for item in items:
            groups.setdefault(self._partition_of[shard_of_id(id_of(item))], []).append(item)
        return sorted(groups.items(), key=lambda group: group[0])


def shard_of_schedule(shards: int, namespace: str, creation: Creation) -> int:
    """Return the shard of a new schedule: that of its jobs' concurrency key, else one hashed from its name."""
    key = creation.definition.job.concurrency_key
    return shard_of(shards, namespace, key) if key else shard_of(shards, namespace, "schedule", creation.name)


async def _lock(
    cursor: Cursor, namespace_id: int, names: Named, prune_prefix: str
) -> tuple[datetime, dict[str, StoredSchedule]]:
    """Lock names and schedules; return the database clock and the schedules that exist."""
    wanted: dict[str, int | None] = dict(names)
    if prune_prefix:
        high = end_of_prefix(prune_prefix)
        limit = MAX_PRUNED + len(names) + 1
        await cursor.execute(WITH_PREFIX, (namespace_id, prune_prefix, high, high, limit))
        pruned = {name: _NO_SIZE for (name,) in await cursor.fetchall() if name not in wanted}
        if len(pruned) > MAX_PRUNED:
            raise TooManyPruned(prune_prefix)
        wanted |= pruned
    await cursor.execute(LOCK_NAMES, (namespace_id, TextArray(sorted(wanted))))
    rows = await cursor.fetchall()
    ids = Int8Array([schedule_id for _, schedule_id in rows])
    shards = Int4Array([shard_of_id(schedule_id) for _, schedule_id in rows])
    await cursor.execute(LOCK_SCHEDULES, (ids, shards, Int4Array([wanted[name] for name, _ in rows])))
    found = [stored_schedule(row, {}) for row in await cursor.fetchall()]
    await cursor.execute("SELECT now()")
    row = await cursor.fetchone()
    assert row is not None
    return row[0], {schedule.name: schedule for schedule in found}


async def _take_names(cursor: Cursor, namespace_id: int, created: Sequence[_Placed]) -> None:
    names = TextArray([one.creation.name for one in created])
    ids = Int8Array([one.schedule_id for one in created])
    handlers = Int4Array([one.creation.definition.job.handler_id for one in created])
    await cursor.execute(TAKE_NAMES, (namespace_id, names, ids, handlers))
    if len(await cursor.fetchall()) < len(created):
        raise _NameTaken


def _insert_params(placed: Sequence[_Placed]) -> tuple[object, ...]:
    creations = [one.creation for one in placed]
    return (
        Int4Array([one.definition.job.namespace_id for one in creations]),
        TextArray([one.name for one in creations]),
        InstantArray([one.created_at for one in creations]),
        Int8Array([one.schedule_id for one in placed]),
        *_common_params(creations),
    )


def _update_params(revisions: Sequence[Revision]) -> tuple[object, ...]:
    return (
        JsonbArray([orjson.dumps(_added(one.stored.skipped_counts, one.skipped)) for one in revisions]),
        BoolArray([one.redefined for one in revisions]),
        Int8Array([one.stored.schedule_id for one in revisions]),
        *_common_params(revisions),
    )


def _common_params(changes: Sequence[Creation | Revision]) -> tuple[object, ...]:
    definitions: list[ScheduleDefinition] = [one.definition for one in changes]
    return (
        Int4Array([one.job.handler_id for one in definitions]),
        InstantArray([one.next_fire_at for one in changes]),
        BoolArray([one.paused for one in changes]),
        Int2Array([one.overlap for one in definitions]),
        Int2Array([one.catch_up for one in definitions]),
        Int8Array([_ms(one.catch_up_window) for one in definitions]),
        Int8Array([_ms(one.timing.jitter) for one in definitions]),
        InstantArray([one.timing.start_at for one in definitions]),
        InstantArray([one.timing.end_at for one in definitions]),
        JsonbArray([timing_to_document(one.timing.spec) for one in definitions]),
        JsonbArray([job_to_document(one.job, one.job_spec) for one in definitions]),
        ByteaArray([one.job.payload for one in definitions]),
    )


def _added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {reason: counts.get(reason, 0) + more.get(reason, 0) for reason in counts.keys() | more.keys()}


def _ms(value: timedelta) -> int:
    return value // timedelta(milliseconds=1)
