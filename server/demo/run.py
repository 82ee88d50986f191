"""The course of a demo."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Final

from server.demo.cluster import Cluster
from server.demo.folder import RunFolder
from server.demo.follower import Follower
from server.demo.handlers import HANDLER
from server.demo.ownership import Ownership, watched_ownership
from server.demo.rates import NodeRates
from server.demo.report import Killing, Phase, Report, TakeOver, account
from server.demo.settings import DemoSettings, Kill
from server.demo.submitter import Submitter
from server.demo.tally import Tally
from server.demo.view import NodeRow, View
from worker_sdk.async_client import AsyncClient
from worker_sdk.jobs import Job, JobState

_WARM_UP_JOBS: Final = 20
_QUIET_JOBS: Final = 200
_QUIET_LEAD: Final = timedelta(milliseconds=500)
_QUIET_GAP: Final = timedelta(milliseconds=10)
# Every tenth job of the burst is due 1 to 3 s ahead.
_AHEAD_EVERY: Final = 10
_AHEAD_LEAST: Final = timedelta(seconds=1)
_AHEAD_STEPS: Final = 200
_LONG_JOBS: Final = 60
_LONG_S: Final = 4.0
_POLL_S: Final = 0.02
_SUBMIT_TIMEOUT_S: Final = 60.0
_ASK_EVERY_S: Final = 0.5
_SILENCE_S: Final = 2.0
_PATIENCE_S: Final = 60.0
_BALANCE_PATIENCE_S: Final = 30.0
_PAGE: Final = 1000


async def run_demo(settings: DemoSettings, view: View) -> Report:
    """Run a demo and return its account. Cancelling it ends all processes and removes all files.

    Raises `EmbeddedPostgresError`, `EmbeddedZookeeperError`, `ProcessEnded`, and `ShardwheelError` if a submit is not
    taken within 60 s.
    """
    began = time.monotonic()
    with RunFolder() as folder:
        view.event(f"starting PostgreSQL, {settings.nodes} node(s), {settings.workers} worker(s)")
        async with (
            Cluster(settings, folder) as cluster,
            watched_ownership(cluster.dsn) as ownership,
            AsyncClient(cluster.address, timeout=_SUBMIT_TIMEOUT_S) as client,
        ):
            return await _Demo(settings, cluster, ownership, client, view).run(began)


class NoProgress(Exception):
    """The logs have not grown for too long."""


class _Demo:
    def __init__(
        self, settings: DemoSettings, cluster: Cluster, ownership: Ownership, client: AsyncClient, view: View
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._ownership = ownership
        self._client = client
        self._view = view
        self._tally = Tally()
        self._rates = NodeRates()
        self._follower = Follower(cluster.logs, self._tally)
        self._submitter = Submitter(client)
        self._killing: Killing | None = None
        self._news_at = time.monotonic()

    async def run(self, began: float) -> Report:
        """Go through the phases."""
        all_final = False
        try:
            await self._phases(began)
            await self._until_recovered()
            await self._until_final()
            all_final = True
        except NoProgress:
            self._view.event(f"no progress for {_PATIENCE_S:.0f} s: this is the account of what has happened so far")
        failed = [job.id async for job in self._list(JobState.FAILED, JobState.CANCELLED)] if all_final else []
        self._look()
        return account(
            coordinator=self._settings.coordinator.value,
            jobs=self._submitter.jobs,
            tally=self._tally,
            killing=self._killing,
            failed=len(failed),
            all_final=all_final,
            take_over=self._take_over(),
        )

    async def _phases(self, began: float) -> None:
        jobs = self._settings.jobs
        warm_up, quiet = min(_WARM_UP_JOBS, jobs // 10), min(_QUIET_JOBS, jobs // 10)
        long = min(_LONG_JOBS, jobs // 20) if self._settings.kill is Kill.NODE else 0
        await self._submitter.submit(Phase.WARM_UP, [None] * warm_up)
        await self._until(self._all_completed)
        await self._until_balanced()
        self._view.event(f"ready after {time.monotonic() - began:.1f} s; shards: {self._shares()}")
        self._view.event(f"quiet phase: {quiet} jobs, one after the other")
        await self._submitter.submit(Phase.QUIET, [_QUIET_LEAD + number * _QUIET_GAP for number in range(quiet)])
        await self._until(self._all_completed)
        await self._burst(jobs - warm_up - quiet - long, long)

    async def _until_balanced(self) -> None:
        give_up = time.monotonic() + _BALANCE_PATIENCE_S
        nodes = self._cluster.nodes
        while not self._ownership.is_balanced(nodes) and time.monotonic() < give_up:
            await asyncio.sleep(_POLL_S)
            self._look()
        self._news_at = time.monotonic()

    async def _burst(self, jobs: int, long: int) -> None:
        delays = [
            _AHEAD_LEAST + timedelta(milliseconds=10 * (number % _AHEAD_STEPS)) if number % _AHEAD_EVERY == 0 else None
            for number in range(jobs)
        ]
        self._view.event(f"burst: {jobs} jobs, {delays.count(None)} of them due at once")
        before, at_once = self._tally.completed, delays.count(None)
        submitting = asyncio.create_task(self._submitter.submit(Phase.BURST, delays))
        try:
            if self._settings.kill is not Kill.NONE:
                await self._until(lambda: _has_failed(submitting) or self._tally.completed >= before + at_once // 3)
                await self._start_long(long)
                half = before + at_once // 2
                await self._until(lambda: _has_failed(submitting) or self._is_time_to_kill(half))
                self._kill()
            await self._until(submitting.done)
        finally:
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
        submitting.result()

    async def _start_long(self, count: int) -> None:
        """Have some jobs running that take longer than the take-over will."""
        await self._submitter.submit(Phase.LONG, [None] * count, runs_s=_LONG_S)
        long = [job for job, one in self._submitter.jobs.items() if one.phase is Phase.LONG]
        await self._until(lambda: all(map(self._tally.executions, long)))

    def _is_time_to_kill(self, half: int) -> bool:
        if self._tally.completed < half:
            return False
        # A worker that happens to wait for jobs at this instant would not be missed.
        busy = self._tally.running[self._cluster.victim(Kill.WORKER)] > 0
        return busy or self._settings.kill is not Kill.WORKER or self._all_completed()

    def _kill(self) -> None:
        kind = self._settings.kill
        victim = self._cluster.victim(kind)
        if kind is Kill.NODE:
            self._ownership.lose(victim)
        self._killing = self._cluster.kill(kind)
        only = {Kill.NODE: self._settings.nodes, Kill.WORKER: self._settings.workers}[kind] == 1
        served = f"; it served {len(self._ownership.orphans)} shards" if kind is Kill.NODE else ""
        again = "; started again at once" if only else ""
        self._view.event(f"kill -9 of {victim} after {self._tally.completed} jobs{served}{again}")

    async def _until_recovered(self) -> None:
        """Wait until what a killed node served is served again, and tell."""
        if self._killing is None or self._killing.kind is not Kill.NODE:
            return
        await self._until(lambda: self._ownership.recovered_at is not None or not self._ownership.orphans)
        seconds = (self._ownership.recovered_at or self._killing.at) - self._killing.at
        moved, orphans = self._ownership.moved, len(self._ownership.orphans)
        what = f"{moved} shards moved" if moved else f"{orphans} shards are served again"
        self._view.event(f"{what} in {seconds:.1f} s; shards: {self._shares()}")

    def _take_over(self) -> TakeOver | None:
        if self._killing is None or self._killing.kind is not Kill.NODE:
            return None
        seen = self._ownership
        return TakeOver(orphans=seen.orphans, moved=seen.moved, recovered_at=seen.recovered_at)

    def _shares(self) -> str:
        counts = self._ownership.counts
        return ", ".join(f"{node} {counts[node]}" for node in self._cluster.nodes if counts[node])

    def _all_completed(self) -> bool:
        return self._tally.completed >= len(self._submitter.jobs)

    async def _until_final(self) -> None:
        """Wait until the cluster has no job left."""
        await self._until(lambda: self._all_completed() or time.monotonic() - self._news_at > _SILENCE_S)
        # Not only until the logs say so: a job whose result went down with its worker has to run again.
        while [job async for job in self._list(JobState.PENDING, JobState.RUNNING)]:
            pause = asyncio.create_task(asyncio.sleep(_ASK_EVERY_S))
            await self._until(pause.done)

    def _list(self, *states: JobState) -> AsyncIterator[Job]:
        return self._client.list(handler=HANDLER, states=states, page_size=_PAGE)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Look again and again until something is true. Raises `NoProgress`, and `ProcessEnded`."""
        self._look()
        while not condition():
            if time.monotonic() - self._news_at > _PATIENCE_S:
                raise NoProgress
            await asyncio.sleep(_POLL_S)
            self._look()

    def _look(self) -> None:
        if self._follower.read():
            self._news_at = time.monotonic()
        self._cluster.check()
        self._rates.note(self._tally.completed_of, self._ownership.owners, time.monotonic())
        counts = self._ownership.counts
        dead = self._killing.name if self._killing is not None and self._settings.nodes > 1 else ""
        self._view.progress(
            submitted=len(self._submitter.jobs),
            completed=self._tally.completed,
            nodes=[
                NodeRow(name=node, shards=counts[node], jobs_per_s=self._rates.of(node), killed=node == dead)
                for node in self._cluster.nodes
            ],
        )


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and task.exception() is not None
