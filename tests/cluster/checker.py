"""What a history has to fulfil: pure functions, one per promise; those about times and owners are in `checker_times`.

Each checker returns the violations that it finds and numbers worth telling. `check` runs them all.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.cluster.checker_times import check_early, check_epochs, check_firings, check_late, check_strikes
from tests.cluster.history import History
from tests.cluster.promises import Findings, Promise, Violation, described, executions_by_job
from tests.cluster.standing import Span, Standing
from tests.cluster.worker_program import COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What all checkers together say."""

    violations: tuple[Violation, ...]
    numbers: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is broken."""
        return not self.violations


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
                text = f"claim {earlier.claim} was executed twice: {described(earlier)}; {described(later)}"
                broken.append(Violation(Promise.DUPLICATE, subject, text))
                continue
            cause = standing.cause(earlier, later)
            if cause is None:
                text = f"executed again for no reason: {described(earlier)}; then {described(later)}"
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
                    text = f"{described(span.execution)} beside {described(other.execution)}"
                    broken.append(Violation(Promise.OVERLAP, f"job {job}", text))
                elif span.runs_with(other):
                    exempt += 1
    return Findings(broken, {"overlapping": len(broken), "overlapping_exempt": exempt})


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
            text = f"limit {limit}, but at once: " + "; ".join(described(span.execution) for span in peak)
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
