"""One run: a load, a nemesis, healing, quiet, and the history of it all."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from server.config import parse_span
from tests.cluster.audit import litter, read_raises, read_trespasses
from tests.cluster.checker import Verdict, check
from tests.cluster.client import Load, Submitters
from tests.cluster.cluster import Cluster
from tests.cluster.evidence import (
    PlannedSchedule,
    left_to_do,
    read_cuts,
    read_executions,
    read_jobs,
    read_lives,
    read_schedules,
    read_strikes,
    read_submissions,
)
from tests.cluster.history import History
from tests.cluster.moved_clock import on_machine_time, read_moves
from tests.cluster.nemeses import Blow, Nemesis, Times
from tests.cluster.recurring import create_schedules

# Quiet is given up after so long without any news.
_PATIENCE_S: Final = 25.0
_POLL_S: Final = 0.2
_LITTER_SHARE: Final = 0.2
_LITTER_EVERY_S: Final = 3.0


@dataclass(slots=True)
class Run:
    """What one run is made of; `history` reads its files."""

    cluster: Cluster
    submitters: Submitters
    chosen: Sequence[str] = ()
    schedules: list[PlannedSchedule] = field(default_factory=list)
    audited: bool = False
    """Whether the audit has been set up in the database."""

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
            others = [supervisor, *([group.create_task(self._litter())] if self.audited else [])]
            async with asyncio.TaskGroup() as work:
                work.create_task(self.submitters.run())
                work.create_task(Nemesis(self.cluster).run(blows))
            await self.cluster.heal()
            await self.quiet()
            for other in others:
                other.cancel()

    async def _litter(self) -> None:
        """For ever: leave dedupe keys behind that have to be cleaned up."""
        while True:
            try:
                await asyncio.to_thread(litter, self.cluster.dsn, _LITTER_SHARE)
            except psycopg.Error:
                # PostgreSQL may be away, or busy with something else.
                pass
            await asyncio.sleep(_LITTER_EVERY_S)

    async def add_schedules(self, count: int, seconds: float, steps: Sequence[int] = (1,)) -> None:
        """Create schedules that fire for about so long, every so many seconds in turn; see `create_schedules`."""
        self.schedules += await create_schedules(self.cluster.client_options, count, seconds, steps)

    async def quiet(self, timeout_s: float = 300.0) -> None:
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
            executions=on_machine_time(
                read_executions(cluster.execution_files), read_moves(cluster.clock_journal.path)
            ),
            lives=read_lives(cluster.journal.path),
            jobs=read_jobs(cluster.dsn),
            schedules=read_schedules(cluster.dsn, self.schedules),
            chosen=tuple(self.chosen),
            strikes=read_strikes(cluster.journal.path),
            cuts=read_cuts(cluster.journal.path),
            raises=read_raises(cluster.dsn) if self.audited else (),
            trespasses=read_trespasses(cluster.dsn) if self.audited else (),
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


def new_run(cluster: Cluster, *, seed: int, load: Load, chosen: Sequence[str] = ()) -> Run:
    """Return a run of a load on a cluster that has started."""
    file: Path = cluster.folder / CLIENT_FILE
    return Run(cluster, Submitters(cluster.client_options, file, seed=seed, load=load), chosen)
