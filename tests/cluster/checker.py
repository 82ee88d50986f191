"""What a history has to fulfil: pure functions, one per promise.

Each checker returns the violations that it finds and numbers worth telling. `check` runs them all.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.cluster.history import Execution, History
from tests.cluster.standing import Span, Standing
from tests.cluster.worker_program import COMPLETED

# Times are kept in whole microseconds; as floating point numbers they are right to a fraction of one.
_MICROSECOND: Final = 1e-6


class Promise(StrEnum):
    """What can be broken."""

    LOST = "lost"
    """An answered job has not completed, or nothing shows that it ran."""
    STUCK = "stuck"
    """A job is not final, or ended other than completed."""
    STALE_ACCEPTED = "stale_accepted"
    """The result of a superseded claim was accepted."""
    DUPLICATE = "duplicate"
    """A job was executed again for no reason."""
    OVERLAP = "overlap"
    """Two valid executions of a job ran at the same time."""
    EARLY = "early"
    DOUBLE_FIRING = "double_firing"
    MISSED_FIRING = "missed_firing"
    KEY_EXCEEDED = "key_exceeded"
    """More jobs of a concurrency key ran than its limit."""
    DEDUPE = "dedupe"
    """One dedupe key made several jobs, or one submit did."""
    EPOCH = "epoch_violations"
    """A shard's epoch fell, or belongs to several incarnations, or somebody acted for a shard without owning it."""
    NO_STRIKE = "no_strike"
    """A fault that was to strike never did: the run proves nothing about it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    promise: Promise
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.subject}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all checkers together say."""

    violations: tuple[Violation, ...]
    numbers: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.violations


@dataclass(frozen=True, slots=True)
class Findings:
    """What one checker says."""

    violations: Sequence[Violation]
    numbers: Mapping[str, int]


def check(history: History) -> Verdict:
    """Return what is broken in a history."""
    findings = [checker(history) for checker in CHECKERS]
    numbers: dict[str, int] = {}
    for one in findings:
        numbers |= one.numbers
    return Verdict(violations=tuple(v for one in findings for v in one.violations), numbers=numbers)


def check_completed(history: History) -> Findings:
    """Every answered job ran and is completed; every other job that exists is completed as well."""
    jobs = {job.job: job for job in history.jobs}
    ran = {(one.job, one.claim) for one in history.executions if one.outcome == COMPLETED}
    answered = {answer.job: answer.name for answer in history.answers}
    broken = []
    for job, name in answered.items():
        final = jobs.get(job)
        if final is None:
            broken.append(Violation(Promise.LOST, f"job {job} ({name})", "the database does not know it"))
        elif final.state == "completed" and (job, final.claim) not in ran:
            text = f"claim {final.claim} is accepted, but no file shows that it came to its end"
            broken.append(Violation(Promise.LOST, f"job {job} ({name})", text))
    broken += [
        Violation(Promise.STUCK, f"job {job.job} ({job.name})", f"ended as {job.state} after {job.claim} claims")
        for job in history.jobs
        if job.state != "completed"
    ]
    strangers = {one.job for one in history.executions} - jobs.keys()
    broken += [
        Violation(Promise.LOST, f"job {job}", "was executed, but the database does not know it") for job in strangers
    ]
    numbers = {
        "submitted": len(answered),
        "jobs": len(jobs),
        "executed": len({one.job for one in history.executions}),
        "executions": len(history.executions),
        "lost": sum(one.promise is Promise.LOST for one in broken),
    }
    return Findings(broken, numbers)


def check_accepted(history: History) -> Findings:
    """The accepted result is that of the latest claim that ran, and comes from the process that ran it."""
    by_job = executions_by_job(history)
    broken = []
    for job in history.jobs:
        if job.state != "completed":
            continue
        executions = by_job.get(job.job, [])
        accepted = next((one for one in executions if one.claim == job.claim), None)
        latest = max((one.claim for one in executions), default=job.claim)
        if job.result_claim != job.claim:
            text = f"claim {job.claim} is completed with the result of claim {job.result_claim}"
        elif latest > job.claim:
            text = f"the result of claim {job.claim} is accepted although claim {latest} was handed out"
        elif accepted is not None and job.result_pid != accepted.pid:
            text = f"claim {job.claim} ran in process {accepted.pid}, its result is from process {job.result_pid}"
        else:
            continue
        broken.append(Violation(Promise.STALE_ACCEPTED, f"job {job.job} ({job.name})", text))
    return Findings(broken, {"stale_accepted": len(broken)})


def check_reruns(history: History) -> Findings:
    """A job is executed again only for a reason, and each claim once."""
    standing = Standing(history)
    causes: Counter[str] = Counter()
    broken = []
    for job, executions in executions_by_job(history).items():
        for earlier, later in itertools.pairwise(executions):
            subject = f"job {job}"
            if earlier.claim == later.claim:
                text = f"claim {earlier.claim} was executed twice: {_described(earlier)}; {_described(later)}"
                broken.append(Violation(Promise.DUPLICATE, subject, text))
                continue
            cause = standing.cause(earlier, later)
            if cause is None:
                text = f"executed again for no reason: {_described(earlier)}; then {_described(later)}"
                broken.append(Violation(Promise.DUPLICATE, subject, text))
            else:
                causes[cause] += 1
    numbers = {f"again_{cause}": count for cause, count in sorted(causes.items())}
    return Findings(broken, {"duplicates": len(broken), **numbers})


def check_overlaps(history: History) -> Findings:
    """Executions of one job run at the same time only if the earlier one has lost its place."""
    standing = Standing(history)
    broken, exempt = [], 0
    for job, executions in executions_by_job(history).items():
        if len(executions) < 2:
            continue
        spans = [standing.span(one) for one in executions]
        for position, span in enumerate(spans):
            for other in spans[position + 1 :]:
                if span.valid_with(other):
                    text = f"{_described(span.execution)} beside {_described(other.execution)}"
                    broken.append(Violation(Promise.OVERLAP, f"job {job}", text))
                elif span.runs_with(other):
                    exempt += 1
    return Findings(broken, {"overlapping": len(broken), "overlapping_exempt": exempt})


def check_early(history: History) -> Findings:
    """Nothing is claimed before its due time by the database's clock, nor started before it."""
    standing = Standing(history)
    jobs = {job.job: job for job in history.jobs}
    broken = []
    for one in history.executions:
        submission, final = standing.submission_of(one.job), jobs.get(one.job)
        wanted = [
            None if submission is None else submission.due_at,
            None if final is None else final.scheduled_for,
        ]
        for due_at in wanted:
            early_s = 0.0 if due_at is None else due_at - one.offset_s - min(one.claimed_at, one.started.wall)
            if early_s > _MICROSECOND:
                text = f"{early_s * 1000:.3f} ms before its due time: {_described(one)}"
                broken.append(Violation(Promise.EARLY, f"job {one.job}", text))
    return Findings(broken, {"early": len(broken)})


def check_late(history: History) -> Findings:
    """How late jobs started for the first time; that is no promise, for it depends on what was broken."""
    standing = Standing(history)
    scheduled = {job.job: job.scheduled_for for job in history.jobs}
    late: list[float] = []
    for job, executions in executions_by_job(history).items():
        submission, at = standing.submission_of(job), scheduled.get(job)
        if submission is not None:
            at = max(submission.sent.wall, submission.due_at or 0.0)
        if at is not None:
            late.append(max(0.0, executions[0].started.wall - at))
    late.sort()
    p99 = late[len(late) * 99 // 100] if late else 0.0
    return Findings((), {"late_ms_p99": round(p99 * 1000)})


def check_firings(history: History) -> Findings:
    """The jobs of a schedule are its expansion, each once; what is missing was counted as skipped."""
    made: dict[int, Counter[float]] = defaultdict(Counter)
    for job in history.jobs:
        if job.schedule is not None and job.scheduled_for is not None:
            made[job.schedule][job.scheduled_for] += 1
    broken = []
    numbers: Counter[str] = Counter({"firings": 0, "double_firings": 0, "missed_firings": 0, "skipped_firings": 0})
    for schedule in history.schedules:
        times = made[schedule.schedule]
        double = [at for at, count in times.items() if count > 1]
        alien = sorted(set(times) - set(schedule.nominal))
        missing = [at for at in schedule.nominal if at not in times]
        skipped = sum(schedule.skipped.values())
        numbers.update(firings=len(times), double_firings=len(double), skipped_firings=skipped)
        if double:
            text = f"several jobs each for {double}"
            broken.append(Violation(Promise.DOUBLE_FIRING, schedule.name, text))
        if alien:
            text = f"fired for {alien}, which are none of its nominal times"
            broken.append(Violation(Promise.DOUBLE_FIRING, schedule.name, text))
        if len(missing) != (0 if schedule.exact else skipped):
            numbers["missed_firings"] += len(missing)
            text = f"no job for {missing}; skipped by its own account: {dict(schedule.skipped)}"
            broken.append(Violation(Promise.MISSED_FIRING, schedule.name, text))
        if schedule.fired != sum(times.values()):
            text = f"has counted {schedule.fired} firings, but made {sum(times.values())} jobs"
            broken.append(Violation(Promise.MISSED_FIRING, schedule.name, text))
    return Findings(broken, numbers)


def check_keys(history: History) -> Findings:
    """Of each concurrency key, at most as many valid executions run at a time as its limit allows."""
    standing = Standing(history)
    spans: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for one in history.executions:
        submission = standing.submission_of(one.job)
        if submission is not None and submission.concurrency_key:
            spans[submission.concurrency_key, submission.concurrency_limit].append(standing.span(one))
    broken, most = [], 0
    for (key, limit), some in spans.items():
        peak = peak_of(some)
        most = max(most, len(peak))
        if len(peak) > limit:
            text = f"limit {limit}, but at once: " + "; ".join(_described(span.execution) for span in peak)
            broken.append(Violation(Promise.KEY_EXCEEDED, key, text))
    return Findings(broken, {"keys": len(spans), "key_peak": most, "keys_exceeded": len(broken)})


def check_dedupe(history: History) -> Findings:
    """However often a submission with a dedupe key was sent, one job came of it; one without a key made one at most."""
    answers: dict[str, set[int]] = defaultdict(set)
    created: Counter[str] = Counter()
    broken = []
    for answer in history.answers:
        answers[answer.name].add(answer.job)
        created[answer.name] += answer.created
        if answer.differs:
            broken.append(Violation(Promise.DEDUPE, answer.name, "its own job was taken for another one's"))
    stored: dict[str, set[int]] = defaultdict(set)
    for job in history.jobs:
        if job.schedule is None:
            stored[job.name].add(job.job)
    known = {submission.name for submission in history.submissions}
    for name in sorted(stored.keys() | answers.keys()):
        jobs = stored[name] | answers[name]
        if len(jobs) > 1:
            broken.append(Violation(Promise.DEDUPE, name, f"made {len(jobs)} jobs: {sorted(jobs)}"))
        if created[name] > 1:
            broken.append(Violation(Promise.DEDUPE, name, f"{created[name]} answers say that they created it"))
        if name not in known:
            broken.append(Violation(Promise.DEDUPE, name, f"nobody has submitted it: {sorted(jobs)}"))
    repeated = Counter(answer.name for answer in history.answers)
    return Findings(broken, {"answered_repeatedly": sum(count > 1 for count in repeated.values())})


def check_epochs(history: History) -> Findings:
    """Epochs of a shard only grow, each belongs to one incarnation of one node, and nobody else acts under it."""
    broken = []
    present: dict[int, int] = {}
    owners: dict[tuple[int, int], set[tuple[object, ...]]] = defaultdict(set)
    for one in history.raises:
        subject = f"shard {one.shard}"
        expected = present.get(one.shard, one.before)
        if one.epoch <= one.before or one.before != expected:
            text = f"epoch {one.before} became {one.epoch}, after {expected}, by {one.process}"
            broken.append(Violation(Promise.EPOCH, subject, text))
        present[one.shard] = one.epoch
        owners[one.shard, one.epoch].add((one.owner, one.incarnation, one.process))
    for (shard, epoch), several in owners.items():
        if len(several) > 1:
            text = f"epoch {epoch} belongs to {sorted(map(str, several))}"
            broken.append(Violation(Promise.EPOCH, f"shard {shard}", text))
    broken += [
        Violation(
            Promise.EPOCH,
            f"shard {one.shard}",
            f"{one.deed} by {one.process} under epoch {one.used}, when {one.owner} owned it at epoch {one.epoch}",
        )
        for one in history.trespasses
    ]
    return Findings(broken, {"epochs": len(history.raises), "epoch_violations": len(broken)})


def check_strikes(history: History) -> Findings:
    """Every fault that was chosen has struck."""
    struck = Counter(strike.fault for strike in history.strikes)
    broken = [
        Violation(Promise.NO_STRIKE, fault, "was to strike, and never did")
        for fault in history.chosen
        if not struck[fault]
    ]
    return Findings(broken, {f"struck_{fault}": count for fault, count in sorted(struck.items())})


CHECKERS: Final[Sequence[Callable[[History], Findings]]] = (
    check_completed,
    check_accepted,
    check_reruns,
    check_overlaps,
    check_early,
    check_late,
    check_firings,
    check_keys,
    check_dedupe,
    check_epochs,
    check_strikes,
)


def executions_by_job(history: History) -> dict[int, list[Execution]]:
    """Return the executions of each job, in the order of their claims."""
    found: dict[int, list[Execution]] = defaultdict(list)
    for one in history.executions:
        found[one.job].append(one)
    for executions in found.values():
        executions.sort(key=lambda one: (one.claim, one.started.mono))
    return found


def peak_of(spans: Iterable[Span]) -> list[Span]:
    """Return the valid spans at the moment when most of them run; at one instant, ends come before starts."""
    edges = []
    for span in spans:
        end = min(span.end, span.valid_until)
        if end > span.start:
            edges += [(span.start, 1, span), (end, 0, span)]
    edges.sort(key=lambda edge: edge[:2])
    running: dict[int, Span] = {}
    peak: list[Span] = []
    for _, starts, span in edges:
        if starts:
            running[id(span)] = span
            if len(running) > len(peak):
                peak = list(running.values())
        else:
            running.pop(id(span), None)
    return peak


def _described(one: Execution) -> str:
    ended = "no end" if one.ended is None else f"{one.outcome} at {one.ended.mono:.3f}"
    where = f"{one.worker}[{one.pid}]"
    return (
        f"claim {one.claim} try {one.attempt} on {where} from {one.started.mono:.3f}"
        f" (claimed {one.claimed_at:.3f}), {ended}"
    )
