"""Schedules as people see them: reading, pausing, deleting, and making a job out of turn.

A name leads to the schedule's id by `schedule_names`, and the id to its shard, so each statement on a schedule names
the partition. Changing definitions is in `schedule_changes`, firing in `schedule_firing`.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, LiteralString

import orjson

from server.domain.due import DueJob
from server.domain.job import JobState
from server.domain.schedule import CatchUpPolicy, OverlapPolicy, ScheduleTiming
from server.domain.sharding import make_id, shard_of_id
from server.domain.stored_schedule import ScheduleDefinition, StoredSchedule
from server.store.arrays import Int4Array, Int8Array
from server.store.database import Connection, Database, Row, Statement
from server.store.insert import IdBlock
from server.store.schedule_documents import job_from_document, timing_from_document
from server.store.schedule_firing import JOB_COLUMNS, JOB_CONFLICT, JOB_SOURCES, JOB_VALUES

COLUMNS: Final[LiteralString] = """s.id, s.namespace_id, s.name, s.handler_id, s.version, s.paused, s.pause_note,
    s.next_fire_at, s.last_fired_at, s.last_job_id, s.fired_count, s.skipped_counts, s.created_at, s.updated_at,
    s.overlap, s.catch_up, s.catch_up_window_ms, s.jitter_ms, s.start_at, s.end_at, s.timing, s.job"""

FIND: Final = "SELECT schedule_id FROM schedule_names WHERE namespace_id = %s AND name = %s"

# Names from `after` (excluded) on that lie in [low, high); NULL bounds are open.
PAGE: Final = """
SELECT name, schedule_id FROM schedule_names
WHERE namespace_id = %s AND name > %s AND name >= %s AND (%s::text IS NULL OR name < %s::text)
ORDER BY name LIMIT %s::int8
"""
PAGE_OF_HANDLER: Final = """
SELECT name, schedule_id FROM schedule_names
WHERE namespace_id = %s AND handler_id = %s AND name > %s AND name >= %s AND (%s::text IS NULL OR name < %s::text)
ORDER BY name LIMIT %s::int8
"""

READ: Final = (
    "SELECT "
    + COLUMNS
    + """, s.payload
    FROM unnest(%s::int8[], %s::int4[]) AS w(id, shard) JOIN schedules s ON s.id = w.id AND s.shard = w.shard"""
)

# Ids are in order of time only roughly, hence the look at several.
OUTCOMES: Final = """
SELECT w.id, o.state
FROM unnest(%s::int8[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT r.state FROM (
        SELECT h.state, h.finished_at FROM job_history h WHERE h.schedule_id = w.id ORDER BY h.id DESC LIMIT 20) r
    ORDER BY r.finished_at DESC LIMIT 1) o
"""

# The version is part of what a firing compares, so none that was decided on before can commit afterwards.
PAUSE: Final = Statement("""
UPDATE {schedules} SET paused = true, pause_note = %s, version = version + 1
WHERE id = %s AND shard = %s AND (NOT paused OR pause_note <> %s)
""")

DELETE: Final = Statement("DELETE FROM {schedules} WHERE id = %s AND shard = %s")
DELETE_NAME: Final = "DELETE FROM schedule_names WHERE namespace_id = %s AND name = %s RETURNING schedule_id"

TRIGGER: Final = Statement(
    """WITH s AS (
    UPDATE {schedules} SET last_job_id = %s WHERE id = %s AND shard = %s RETURNING *)
INSERT INTO {jobs} """
    + JOB_COLUMNS
    + " SELECT "
    + JOB_VALUES
    + """
FROM s
CROSS JOIN LATERAL (SELECT s.last_job_id AS job_id, now() AS scheduled_for, now() AS due_at, false AS queues) f
"""
    + JOB_SOURCES
    + " "
    + JOB_CONFLICT
    + " RETURNING priority, due_at, id, shard, handler_id"
)


class ScheduleStore:
    """Schedules by name. All methods raise the store's errors; a name that does not exist gives None."""

    def __init__(self, database: Database, ids: IdBlock, partition_of: Sequence[int]) -> None:
        self._database = database
        self._ids = ids
        self._partition_of = partition_of

    async def get(self, namespace_id: int, name: str) -> StoredSchedule | None:
        """Return a schedule."""
        schedule_id = await self._find(namespace_id, name)
        if schedule_id is None:
            return None
        found = await self.read([schedule_id])
        return found[0] if found else None

    async def page(
        self, namespace_id: int, *, prefix: str = "", handler_id: int | None = None, after: str = "", limit: int
    ) -> tuple[list[StoredSchedule], bool]:
        """Return up to `limit` schedules by name (as bytes sort), those behind `after`, and whether there are more."""
        high = end_of_prefix(prefix)
        bounds = (after, prefix, high, high, limit + 1)
        if handler_id is None:
            rows = await self._database.run(PAGE, (namespace_id, *bounds), api=True)
        else:
            rows = await self._database.run(PAGE_OF_HANDLER, (namespace_id, handler_id, *bounds), api=True)
        return await self.read([schedule_id for _, schedule_id in rows[:limit]]), len(rows) > limit

    async def read(self, schedule_ids: Sequence[int]) -> list[StoredSchedule]:
        """Return the schedules of these ids that exist, in their order."""
        ids = Int8Array(schedule_ids)
        shards = Int4Array([shard_of_id(schedule_id) for schedule_id in schedule_ids])
        if not schedule_ids:
            return []
        rows = await self._database.run(READ, (ids, shards), api=True)
        outcomes = dict(await self._database.run(OUTCOMES, (ids,), api=True))
        found = {row[0]: stored_schedule(row, outcomes) for row in rows}
        return [found[schedule_id] for schedule_id in schedule_ids if schedule_id in found]

    async def pause(self, namespace_id: int, name: str, note: str) -> StoredSchedule | None:
        """Pause a schedule: once this has returned, no firing commits. Nothing changes if it is paused already."""
        schedule_id = await self._find(namespace_id, name)
        if schedule_id is None:
            return None
        shard = shard_of_id(schedule_id)
        statement = PAUSE.on(self._partition_of[shard])
        await self._database.run(statement, (note, schedule_id, shard, note), api=True)
        found = await self.read([schedule_id])
        return found[0] if found else None

    async def delete(self, namespace_id: int, name: str) -> bool:
        """Delete a schedule; jobs that it made stay. Return whether there was one."""

        async def work(connection: Connection) -> bool:
            cursor = connection.cursor(binary=True)
            row = await (await cursor.execute(DELETE_NAME, (namespace_id, name))).fetchone()
            if row is None:
                return False
            shard = shard_of_id(row[0])
            await cursor.execute(DELETE.on(self._partition_of[shard]), (row[0], shard))
            return True

        return await self._database.transact(work)

    async def trigger(self, namespace_id: int, name: str) -> DueJob | None:
        """Make a job now, paused or not; its `scheduled_for` is the database's now."""
        schedule_id = await self._find(namespace_id, name)
        if schedule_id is None:
            return None
        shard = shard_of_id(schedule_id)
        while True:
            [sequence] = await self._ids.take(1)
            params = (make_id(sequence, shard), schedule_id, shard)
            rows = await self._database.run(TRIGGER.on(self._partition_of[shard]), params, api=True)
            if rows:
                return DueJob(*rows[0])
            # No schedule any more, or another job with the very same time.
            if not await self.read([schedule_id]):
                return None

    async def _find(self, namespace_id: int, name: str) -> int | None:
        rows = await self._database.run(FIND, (namespace_id, name), api=True)
        return rows[0][0] if rows else None


def end_of_prefix(prefix: str) -> str | None:
    """Return the first text behind all that start with `prefix` (ASCII), None if there is no end."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else None


def stored_schedule(row: Row, outcomes: Mapping[int, int]) -> StoredSchedule:
    """Return the schedule of a row of `COLUMNS` and a payload; `outcomes` are states of latest jobs by schedule."""
    (schedule_id, namespace_id, name, handler_id, version, paused, pause_note, next_fire_at, last_fired_at, last_job_id,
     fired_count, skipped_counts, created_at, updated_at, overlap, catch_up, window_ms, jitter_ms, start_at, end_at,
     timing, job, payload) = row  # fmt: skip
    resolved, job_spec = job_from_document(job, namespace_id, handler_id, payload)
    outcome = outcomes.get(schedule_id)
    return StoredSchedule(
        schedule_id=schedule_id,
        namespace_id=namespace_id,
        name=name,
        definition=ScheduleDefinition(
            timing=ScheduleTiming(
                spec=timing_from_document(timing),
                start_at=start_at,
                end_at=end_at,
                jitter=timedelta(milliseconds=jitter_ms),
            ),
            job=resolved,
            job_spec=job_spec,
            overlap=OverlapPolicy(overlap),
            catch_up=CatchUpPolicy(catch_up),
            catch_up_window=timedelta(milliseconds=window_ms),
        ),
        version=version,
        paused=paused,
        pause_note=pause_note,
        next_fire_at=next_fire_at,
        last_fired_at=last_fired_at,
        last_job_id=last_job_id,
        fired_count=fired_count,
        skipped_counts=orjson.loads(skipped_counts),
        created_at=created_at,
        updated_at=updated_at,
        last_outcome=None if outcome is None else JobState(outcome),
    )
