"""One run: a load, a nemesis, healing, quiet, and the history of it all."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Final

import psycopg

from server.config import parse_span
from tests.cluster.checker import Verdict, check
from tests.cluster.client import Load, Submitters
from tests.cluster.cluster import Cluster
from tests.cluster.evidence import (
    PlannedSchedule,
    left_to_do,
    read_executions,
    read_jobs,
    read_lives,
    read_schedules,
    read_strikes,
    read_submissions,
)
from tests.cluster.history import History
from tests.cluster.nemeses import Blow, Nemesis, Times
from tests.cluster.worker_program import SHORT
from worker_sdk import AsyncClient, CatchUp, NewSchedule, Overlap

# Quiet is given up after so long without any news.
_PATIENCE_S: Final = 25.0
_POLL_S: Final = 0.2


@dataclass(slots=True)
class Run:
    """What one run is made of; `history` reads its files."""

    cluster: Cluster
    submitters: Submitters
    chosen: Sequence[str] = ()
    schedules: list[PlannedSchedule] = field(default_factory=list)

    @property
    def times(self) -> Times:
        """Times of the cluster that faults are measured by."""
        settings = self.cluster.settings
        return Times(
            lease_s=parse_span(settings["worker_lease"]).total_seconds(),
            session_s=parse_span(settings["session_ttl"]).total_seconds(),
        )

    async def load_under(self, blows: Sequence[Blow]) -> None:
        """Send the load while the nemesis strikes, then heal everything, and wait until no job is left."""
        async with asyncio.TaskGroup() as group:
            supervisor = group.create_task(self.cluster.supervise())
            async with asyncio.TaskGroup() as work:
                work.create_task(self.submitters.run())
                work.create_task(Nemesis(self.cluster).run(blows))
            await self.cluster.heal()
            await self.quiet()
            supervisor.cancel()

    async def add_schedules(self, count: int, seconds: float) -> None:
        """Create schedules that fire every second for about so long: half of them exactly, half by the defaults."""
        # Not at once: the answer of a schedule that is created just before a second may know of its first firing.
        first = ceil(time.time()) + 2
        end = first + ceil(seconds) - 2
        nominal = tuple(float(second) for second in range(first, end))
        async with AsyncClient(self.cluster.address) as client:
            for number in range(count):
                exact = number % 2 == 0
                wanted = NewSchedule(
                    name=f"schedule-{number}",
                    handler=SHORT,
                    payload={},
                    job_name=f"schedule-{number}",
                    cron="* * * * * *" if number % 4 < 2 else "",
                    every=None if number % 4 < 2 else 1.0,
                    anchor=None if number % 4 < 2 else _ANCHOR,
                    start_at=datetime.fromtimestamp(first, UTC),
                    end_at=datetime.fromtimestamp(end, UTC),
                    catch_up=CatchUp.ALL if exact else None,
                    overlap=Overlap.ALLOW if exact else None,
                )
                created = await client.create_schedule(wanted)
                assert created.next_fire_at == wanted.start_at
                self.schedules.append(
                    PlannedSchedule(schedule=created.id, name=wanted.name, nominal=nominal, exact=exact)
                )

    async def quiet(self, timeout_s: float = 120.0) -> None:
        """Wait until every schedule has ended and no job is left that is not final."""
        began = news_at = time.monotonic()
        left = -1
        while left:
            now = time.monotonic()
            assert now - news_at < _PATIENCE_S, f"{left} jobs and schedules are left, and nothing happens any more"
            assert now - began < timeout_s, f"{left} jobs and schedules are left after {timeout_s} s"
            try:
                found = await asyncio.to_thread(left_to_do, self.cluster.dsn)
            except psycopg.OperationalError:
                found = left
            if found != left:
                left, news_at = found, now
            await asyncio.sleep(_POLL_S)

    def history(self) -> History:
        """Read what has happened."""
        cluster = self.cluster
        submissions, answers = read_submissions(cluster.folder / CLIENT_FILE)
        return History(
            lease_s=parse_span(cluster.settings["worker_lease"]).total_seconds(),
            reset_grace_s=parse_span(cluster.settings["reset_grace"]).total_seconds(),
            kill_grace_s=parse_span(cluster.settings["kill_grace"]).total_seconds(),
            submissions=submissions,
            answers=answers,
            executions=read_executions(cluster.execution_files),
            lives=read_lives(cluster.journal.path),
            jobs=read_jobs(cluster.dsn),
            schedules=read_schedules(cluster.dsn, self.schedules),
            chosen=tuple(self.chosen),
            strikes=read_strikes(cluster.journal.path),
        )

    def verdict(self, **labels: object) -> tuple[History, Verdict]:
        """Check what has happened, print the numbers as one JSON object, and fail with the first violations if any."""
        history = self.history()
        verdict = check(history)
        word = "ok" if verdict.ok else str(verdict.violations[0].promise)
        print(json.dumps({**labels, **verdict.numbers, "verdict": word}))
        shown = "\n".join(map(str, verdict.violations[:20]))
        assert verdict.ok, f"{len(verdict.violations)} violations:\n{shown}"
        return history, verdict


CLIENT_FILE: Final = "client.journal"
_ANCHOR: Final = datetime(2000, 1, 1, tzinfo=UTC)


def new_run(cluster: Cluster, *, seed: int, load: Load, chosen: Sequence[str] = ()) -> Run:
    """Return a run of a load on a cluster that has started."""
    file: Path = cluster.folder / CLIENT_FILE
    return Run(cluster, Submitters(cluster.address, file, seed=seed, load=load), chosen)
