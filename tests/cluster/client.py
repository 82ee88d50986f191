"""Submitters: a steady load of jobs of all kinds, and a file of what was sent and what was answered.

What to submit is drawn from a seed. A submit whose fate is unknown is sent again only if its jobs have dedupe keys.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.cluster.journal import Journal
from tests.cluster.worker_program import FLAKY, KEYED, LONG, OVERRUN, SHORT, SNOOZED
from worker_sdk import AsyncClient, DeadlineExceeded, NewJob, RetryPolicy, Submitted, Timeouts, Unavailable
from worker_sdk.connection import ConnectionOptions

# Deaths of workers burn tries; none of these jobs is to fail for want of them.
RETRY: Final = RetryPolicy(max_attempts=50, initial_delay=0.1, max_delay=0.5)
OVERRUN_TIMEOUT_S: Final = 1.0

_TICK_S: Final = 0.05
_MADE_UP_S: Final = 1.0
_BATCH: Final = 20
_AT_A_TIME: Final = 32
_CALL_TIMEOUT_S: Final = 5.0
_KEYS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What submitters send. Rates are jobs per second, of all submitters together."""

    rate: float = 350.0
    seconds: float = 25.0
    ahead_s: float = 6.0
    """Jobs of the future are due at most this long after their submit, and before the load ends."""
    long_s: tuple[float, float] = (1.0, 4.0)
    """How long the long jobs take."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One job to be submitted: how it is asked for, and what its history has to know."""

    job: NewJob
    failures: int = 0
    timeout_s: float | None = None


class Draw:
    """Draws jobs: mostly short ones, some long, failing, overrunning, keyed or of the future."""

    def __init__(self, seed: int, load: Load) -> None:
        self._random = random.Random(seed)
        self._load = load
        self._number = 0

    def wish(self, *, dedupe: bool, now: float, until: float) -> Wish:
        """Draw a job; it is due at the latest at `until`, in seconds since 1970 as `now`."""
        draw = self._random
        self._number += 1
        name = f"job-{self._number}"
        failures, timeout_s, key, limit = 0, None, "", 1
        payload: dict[str, object] = {"first_s": round(draw.uniform(0.0, 0.05), 4)}
        handler = draw.choices([SHORT, KEYED, FLAKY, SNOOZED, OVERRUN, LONG], [85.0, 8.0, 3.0, 1.0, 0.5, 2.5])[0]
        if handler == KEYED:
            number = draw.randrange(_KEYS)
            key, limit = f"key-{number}", 1 + number % 3
        elif handler == FLAKY:
            failures = payload["failures"] = draw.randint(1, 2)
        elif handler == OVERRUN:
            timeout_s = OVERRUN_TIMEOUT_S
        elif handler == LONG:
            payload["first_s"] = round(draw.uniform(*self._load.long_s), 3)
        due_at = None
        if draw.random() < 0.15:
            due_at = datetime.fromtimestamp(min(until, now + draw.uniform(0.2, self._load.ahead_s)), UTC)
        job = NewJob(
            handler=handler,
            payload=payload,
            name=name,
            priority=draw.randint(1, 5),
            due_at=due_at,
            retry=RETRY,
            timeouts=None if timeout_s is None else Timeouts(attempt=timeout_s),
            dedupe_key=name if dedupe else "",
            concurrency_key=key,
            concurrency_limit=limit if key else None,
        )
        return Wish(job, failures, timeout_s)

    def chance(self, probability: float) -> bool:
        """Draw whether something is to be."""
        return self._random.random() < probability


class Submitters:
    """Send a load to a cluster and write down what becomes of it."""

    def __init__(self, options: ConnectionOptions, file: Path, *, seed: int, load: Load) -> None:
        self.load = load
        self._options = options
        self._journal = Journal(file)
        self._draw = Draw(seed, load)
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self.answered = 0
        """Answers so far, one per job."""
        self.refused = 0
        """Jobs whose submit ended without an answer and was not sent again."""

    async def run(self) -> None:
        """Send the whole load, and return when every submit has its answer or was given up."""
        began, due, calls = time.monotonic(), 0.0, 0
        counted_at = began
        until = time.time() + self.load.seconds
        # One that repeats by itself, inside its time, what does no more when it is sent twice; the rest it does not.
        async with (
            AsyncClient(**self._options, timeout=_CALL_TIMEOUT_S, retry_submits=False) as client,
            asyncio.TaskGroup() as group,
        ):
            while (elapsed := time.monotonic() - began) < self.load.seconds:
                # What could not be sent in an outage is not made up for; a short delay is.
                due = min(due + self.load.rate * (began + elapsed - counted_at), self.load.rate * _MADE_UP_S)
                counted_at = began + elapsed
                while due >= 1:
                    calls += 1
                    size = 1 if calls % 4 else _BATCH
                    due -= size
                    dedupe = self._draw.chance(0.7)
                    wishes = [self._draw.wish(dedupe=dedupe, now=time.time(), until=until) for _ in range(size)]
                    self._note_sent(wishes)
                    twice = dedupe and self._draw.chance(0.05)
                    for _ in range(2 if twice else 1):
                        await self._turns.acquire()
                        group.create_task(self._send(client, wishes, again=dedupe))
                await asyncio.sleep(max(0.0, elapsed + _TICK_S - (time.monotonic() - began)))

    async def send(self, jobs: Sequence[Wish]) -> list[int]:
        """Submit jobs with dedupe keys, beside the load, and return their ids."""
        self._note_sent(jobs)
        async with AsyncClient(**self._options, timeout=_CALL_TIMEOUT_S) as client:
            await self._turns.acquire()
            answers = await self._send(client, jobs, again=True)
        return [answer.job_id for answer in answers]

    async def _send(self, client: AsyncClient, wishes: Sequence[Wish], *, again: bool) -> list[Submitted]:
        try:
            deadline = time.monotonic() + self.load.seconds + 90.0
            while True:
                try:
                    answers = await self._call(client, wishes)
                except (Unavailable, DeadlineExceeded) as error:
                    if again and time.monotonic() < deadline:
                        await asyncio.sleep(0.1)
                        continue
                    self.refused += len(wishes)
                    for wish in wishes:
                        self._journal.write("refused", name=wish.job.name, error=str(error))
                    return []
                await self._note_answers(wishes, answers)
                return answers
        finally:
            self._turns.release()

    async def _call(self, client: AsyncClient, wishes: Sequence[Wish]) -> list[Submitted]:
        if len(wishes) > 1:
            return await client.submit_many(wish.job for wish in wishes)
        job = wishes[0].job
        return [
            await client.submit(
                job.handler,
                job.payload,
                name=job.name,
                priority=job.priority,
                due_at=job.due_at,
                retry=job.retry,
                timeouts=job.timeouts,
                dedupe_key=job.dedupe_key,
                concurrency_key=job.concurrency_key,
                concurrency_limit=job.concurrency_limit,
            )
        ]

    def _note_sent(self, wishes: Sequence[Wish]) -> None:
        for wish in wishes:
            job = wish.job
            self._journal.write(
                "sent",
                name=job.name,
                handler=job.handler,
                due_at=None if job.due_at is None else job.due_at.timestamp(),
                dedupe_key=job.dedupe_key,
                concurrency_key=job.concurrency_key,
                concurrency_limit=job.concurrency_limit or 1,
                timeout_s=wish.timeout_s,
                failures=wish.failures,
            )

    async def _note_answers(self, wishes: Sequence[Wish], answers: Sequence[Submitted]) -> None:
        for wish, answer in zip(wishes, answers, strict=True):
            self._journal.write(
                "answered", name=wish.job.name, job=answer.job_id, created=answer.created, differs=answer.differs
            )
        await asyncio.wrap_future(self._journal.durable())
        self.answered += len(answers)
