"""What a history has to fulfil, part two: times, schedules, epochs, and that the run was worth something."""

from collections import Counter, defaultdict
from typing import Final

from tests.cluster.history import History
from tests.cluster.promises import Findings, Promise, Violation, described, executions_by_job
from tests.cluster.standing import Standing

# Times are kept in whole microseconds; as floating point numbers they are right to a fraction of one.
_MICROSECOND: Final = 1e-6


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
                text = f"{early_s * 1000:.3f} ms before its due time: {described(one)}"
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
