"""Model: the attempts of one job on two workers: results that come late and twice, worker leases, timeouts.

Nodes do not appear: a result may be committed by any of them, and what the owner does is fenced (see `fencing`).

| action | stands for |
|---|---|
| claim | `server.store.claim.CLAIM`, with a worker whose lease runs |
| deliver, never arrives | the job batch reaches the worker; or not, which its report tells: `Adoption`, `Undelivered` |
| complete, fail, interrupt | the handler ends; `Completed`, `Failed`, `Interrupted` |
| result, result (ack lost) | `Completer._end`: FINISH or REQUEUE by the open claim; unacknowledged results are sent again |
| silence, return, crash | the worker's lease is over; it is heard again, and is told what it no longer has (`Welcome.superseded`); it dies |
| suspect, reap | `Reaper._reap_workers`: `dead_workers` and `running_of_workers`, then REQUEUE or FINISH with `Recheck.WORKER_LOST` |
| time is over, stop, grace is over, supersede | `Reaper.end_overdue`: cancel, confirmation, `Recheck.TIMED_OUT` after `kill_grace` |
"""  # noqa: E501

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.model import tables
from tests.model.checker import Step
from tests.model.protections import Protection
from tests.model.tables import Job, Removed
from tests.model.tables import State as JobState

WORKERS = (1, 2)
MAX_ATTEMPTS = 2
MAX_CLAIMS = 3


class Phase(IntEnum):
    """Where an attempt is."""

    SENT = 0
    RUNNING = 1
    COMPLETED = 2  # from here to INTERRUPTED: the worker has a result that no node has acknowledged
    FAILED = 3
    INTERRUPTED = 4
    OVER = 5

    __hash__ = int.__hash__  # that of enumerations is slow


class Attempt(NamedTuple):
    """One claim, as its worker knows it."""

    worker: int
    phase: Phase = Phase.SENT
    exempt: bool = False  # superseded because its worker's lease or its grace was over: it may go on meanwhile
    accepted: bool = False


OVER = Attempt(worker=0, phase=Phase.OVER)


class Overtime(IntEnum):
    """How far the running attempt is over its time."""

    NONE = 0
    OVER = 1
    GRACE_OVER = 2

    __hash__ = int.__hash__


class State(NamedTuple):
    """The job's row, its attempts by claim, the workers' leases, the reaper; what may still go wrong."""

    job: Job = Job()
    attempts: tuple[Attempt, ...] = ()
    silent: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    suspect: int = 0
    overtime: Overtime = Overtime.NONE
    silences: int = 1
    timeouts: int = 1
    lost_acks: int = 1
    give_backs: int = 1


class Attempts:
    """The model; see the module."""

    def __init__(self, removed: Removed = ()) -> None:
        self._removed = removed

    def initial(self) -> State:
        return State()

    def wrong(self, state: State) -> str:
        live = [
            one
            for one in state.attempts
            if one.phase is Phase.RUNNING and not one.exempt and one.worker not in state.silent
        ]
        return "two attempts run on workers with a lease" if len(live) > 1 else ""

    def is_good(self, state: State) -> bool:
        return state.job.is_final

    def steps(self, state: State) -> Iterator[Step[State]]:
        if state.job.state is JobState.PENDING and state.job.claim < MAX_CLAIMS:
            yield from self._claims(state)
        for number, one in enumerate(state.attempts, 1):
            if one.phase is Phase.SENT:
                yield from self._delivery(state, number, one)
            elif one.phase is Phase.RUNNING:
                yield from self._ends(state, number, one)
            elif one.phase is not Phase.OVER and one.worker not in state.silent:
                yield from self._result(state, number, one)
        yield from self._workers(state)
        yield from self._reaper(state)
        yield from self._timeouts(state)

    def _claims(self, state: State) -> Iterator[Step[State]]:
        heard = [worker for worker in WORKERS if worker not in state.silent]
        # The workers are alike: the first attempt may as well be that of the first one.
        for worker in heard if state.attempts else heard[:1]:
            job = tables.claim(state.job, 1, worker)
            assert job is not None
            after = state._replace(job=job, attempts=(*state.attempts, Attempt(worker)), overtime=Overtime.NONE)
            yield Step(("claim", job.claim, "for worker", worker), after)

    def _delivery(self, state: State, number: int, one: Attempt) -> Iterator[Step[State]]:
        if one.worker not in state.silent:
            yield Step(("deliver", number), _set(state, number, one._replace(phase=Phase.RUNNING)))
        if state.give_backs:
            back = tables.requeue(state.job, number, burn=False, removed=self._removed)
            after = _set(state, number, OVER)._replace(give_backs=state.give_backs - 1)
            yield Step(("never arrives", number), after._replace(job=back or state.job))

    def _ends(self, state: State, number: int, one: Attempt) -> Iterator[Step[State]]:
        yield Step(("complete", number), _set(state, number, one._replace(phase=Phase.COMPLETED)))
        yield Step(("fail", number), _set(state, number, one._replace(phase=Phase.FAILED)))
        if state.give_backs:
            given = state._replace(give_backs=state.give_backs - 1)
            yield Step(("interrupt", number), _set(given, number, one._replace(phase=Phase.INTERRUPTED)))

    def _result(self, state: State, number: int, one: Attempt) -> Iterator[Step[State]]:
        job, wrong = state.job, ""
        changed = self._outcome(job, number, one.phase)
        if changed is not None:
            job = changed
            if one.accepted:
                wrong = "the outcome of an attempt counts twice"
            elif number < state.job.claim:
                wrong = "the result of a superseded claim is accepted"
            one = one._replace(accepted=True)
        done = _set(state, number, OVER)._replace(job=job)
        yield Step(("result", number), done, wrong)
        if state.lost_acks:
            kept = _set(state, number, one)._replace(job=job, lost_acks=state.lost_acks - 1)
            yield Step(("result (ack lost)", number), kept, wrong)

    def _outcome(self, job: Job, number: int, phase: Phase) -> Job | None:
        """What `decide` and the statement after it make of a result; a cancel is not part of this model."""
        if phase is Phase.COMPLETED:
            return tables.finish(job, number, JobState.COMPLETED, self._removed)
        if phase is Phase.FAILED and job.attempt >= MAX_ATTEMPTS:
            return tables.finish(job, number, JobState.FAILED, self._removed)
        return tables.requeue(job, number, burn=phase is Phase.FAILED, removed=self._removed)

    def _workers(self, state: State) -> Iterator[Step[State]]:
        for worker in WORKERS:
            if worker in state.silent:
                if worker not in state.dead:
                    yield Step(("return", worker), self._returned(state, worker))
            elif state.silences:
                gone = state._replace(silent=(*state.silent, worker), silences=state.silences - 1)
                yield Step(("silence", worker), gone)
                left = tuple(OVER if one.worker == worker else one for one in state.attempts)
                yield Step(("crash", worker), gone._replace(attempts=left, dead=(*state.dead, worker)))

    def _returned(self, state: State, worker: int) -> State:
        """The worker is heard again, and has dropped what is no longer its own."""
        attempts = tuple(
            OVER if one.worker == worker and not tables.is_open(state.job, number, self._removed) else one
            for number, one in enumerate(state.attempts, 1)
        )
        return state._replace(silent=tuple(one for one in state.silent if one != worker), attempts=attempts)

    def _reaper(self, state: State) -> Iterator[Step[State]]:
        job, number = state.job, state.suspect
        if not number:
            if job.state is JobState.RUNNING and job.worker in state.silent:
                yield Step(("suspect", job.claim), state._replace(suspect=job.claim))
            return
        over = job.worker in state.silent
        done = state._replace(suspect=0)
        if tables.is_lost(job, number, lease_over=over, removed=self._removed):
            yield Step(("reap", number), self._given_up(done, number, keep_open=True, exempt=over))
        else:
            yield Step(("leave alone", number), done)

    def _timeouts(self, state: State) -> Iterator[Step[State]]:
        job = state.job
        if job.state is not JobState.RUNNING:
            return
        number = job.open_claim
        one = state.attempts[number - 1]
        if state.overtime is Overtime.NONE and state.timeouts:
            yield Step(("time is over", number), state._replace(overtime=Overtime.OVER, timeouts=state.timeouts - 1))
        if state.overtime is Overtime.OVER:
            yield Step(("grace is over", number), state._replace(overtime=Overtime.GRACE_OVER))
            if one.phase is Phase.RUNNING:
                yield Step(("stop", number), _set(state, number, one._replace(phase=Phase.FAILED)))
        late = state.overtime is Overtime.GRACE_OVER
        if late or (state.overtime is Overtime.OVER and Protection.KILL_GRACE in self._removed):
            yield Step(("supersede", number), self._given_up(state, number, keep_open=False, exempt=late))

    def _given_up(self, state: State, number: int, *, keep_open: bool, exempt: bool) -> State:
        """The owner ends an attempt: the next try, or the end if it was the last."""
        job = state.job
        if job.attempt >= MAX_ATTEMPTS:
            after = tables.finish(job, number, JobState.FAILED)
        else:
            after = tables.requeue(job, number, burn=True, keep_open=keep_open)
        assert after is not None
        one = state.attempts[number - 1]
        if one.phase is not Phase.OVER:
            one = one._replace(exempt=one.exempt or exempt)
        return _set(state, number, one)._replace(job=after)


def _set(state: State, number: int, one: Attempt) -> State:
    attempts = (*state.attempts[: number - 1], one, *state.attempts[number:])
    return state._replace(attempts=attempts)
