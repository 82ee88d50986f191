"""A chaos run: a cluster of its own, a load, mixed faults, and one JSON object about what came of it."""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from server.store.migrate import migrate
from tests.cluster import audit
from tests.cluster.checker import Verdict, check
from tests.cluster.client import Load
from tests.cluster.cluster import Cluster
from tests.cluster.history import History
from tests.cluster.logs import moved_partitions, tracebacks
from tests.cluster.nemeses import REGISTRY, offers, plan, possible
from tests.cluster.promises import Promise
from tests.cluster.run import Run, new_run
from tests.cluster.settings import CLUSTER
from tests.cluster.zookeeper import ZookeeperSite, zookeeper_site
from tests.support.postgres_site import PostgresSite, equipped_site

STEPS: Final = (1, 2, 5, 10)
"""Seconds between the firings of a schedule, in turn."""
_NUMBERS: Final = (
    "submitted", "executed", "lost", "stale_accepted", "overlapping", "double_firings", "missed_firings", "early",
    "epoch_violations",
)  # fmt: skip
_DISK_MB: Final = 2500
# Faults that hold their victim for a minute leave no room for others in a run of a few.
_NOT_BY_DEFAULT: Final = frozenset({"zookeeper_away_for_a_minute", "nodes_away"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run is made of."""

    minutes: float
    seed: int
    faults: Sequence[str] = ()
    """Kinds to choose from; none: all that the cluster makes possible."""
    every_s: float = 3.2
    rate: float = 500.0
    schedules: int = 200
    nodes: int = 3
    workers: int = 3
    ensemble: bool = False
    standby: bool = False
    clock: bool = False
    disk: bool = False
    secure: bool = False
    keep: Path | None = None
    """A folder for logs and journals, kept; None: a temporary one."""

    @property
    def seconds(self) -> float:
        """How long the load lasts."""
        return self.minutes * 60.0


@dataclass(slots=True)
class Report:
    """What came of a run."""

    options: Options
    coordinator: str = "zookeeper"
    history: History | None = None
    verdict: Verdict | None = None
    broke: list[str] = field(default_factory=list)
    """What went wrong beside the promises."""

    @property
    def word(self) -> str:
        """ "ok", or what broke."""
        if self.verdict is None:
            return "; ".join(self.broke) or "nothing was checked"
        promises = Counter(str(one.promise) for one in self.verdict.violations)
        texts = [*self.broke, *(f"{promise} ({count})" for promise, count in sorted(promises.items()))]
        return "; ".join(texts) or "ok"

    def as_json(self) -> str:
        """Return the report as one JSON object on one line."""
        numbers = self.verdict.numbers if self.verdict is not None else {}
        prefix = "again_"
        causes = {name.removeprefix(prefix): count for name, count in numbers.items() if name.startswith(prefix)}
        strikes = Counter(strike.fault for strike in self.history.strikes) if self.history is not None else {}
        return json.dumps(
            {
                "seed": self.options.seed,
                "minutes": self.options.minutes,
                "secure": self.options.secure,
                "coordinator": self.coordinator,
                "faults": dict(sorted(strikes.items())),
                "duplicates": {**causes, "unexplained": numbers.get("duplicates")},
                **{name: numbers.get(name) for name in _NUMBERS},
                "late_ms_p99": numbers.get("late_ms_p99"),
                "verdict": self.word,
            }
        )


def run_chaos(options: Options) -> Report:
    """Carry a run out in the calling thread, which has to be the main one."""
    report = Report(options)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardwheel-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        print(f"seed {options.seed}: logs and journals in {folder}", file=sys.stderr)
        site = stack.enter_context(
            equipped_site(standby=options.standby, clock=options.clock, disk_mb=_DISK_MB if options.disk else 0)
        )
        zookeeper = stack.enter_context(zookeeper_site(ensemble=options.ensemble))
        with _database(site) as dsn:
            asyncio.run(_chaos(report, folder, site, zookeeper, dsn))
    return report


@contextlib.contextmanager
def _database(site: PostgresSite) -> Iterator[str]:
    name = site.server.create_database()
    dsn = site.dsn(name)
    asyncio.run(migrate(dsn))
    audit.install(dsn)
    yield dsn


async def _chaos(report: Report, folder: Path, site: PostgresSite, zookeeper: ZookeeperSite, dsn: str) -> None:
    options = report.options
    cluster = Cluster(
        folder, site, dsn, nodes=options.nodes, workers=options.workers, settings=CLUSTER, zookeeper=zookeeper,
        relayed=True, secure=options.secure,
    )  # fmt: skip
    async with cluster:
        faults = options.faults or [kind for kind in possible(offers(cluster)) if kind not in _NOT_BY_DEFAULT]
        missing = [kind for kind in faults if not REGISTRY[kind].needs <= offers(cluster)]
        assert not missing, f"this cluster makes these faults impossible: {missing}"
        lease_s = float(CLUSTER["worker_lease"].removesuffix("s"))
        load = Load(rate=options.rate, seconds=options.seconds, long_s=(1.0, lease_s + 3.0))
        run = new_run(cluster, seed=options.seed, load=load, chosen=faults)
        run.audited = True
        await run.add_schedules(options.schedules, options.seconds, STEPS)
        blows = plan(options.seed, options.seconds, faults, times=run.times, every_s=options.every_s)
        print(f"{len(blows)} faults of {len(faults)} kinds are to come", file=sys.stderr)
        began = time.monotonic()
        try:
            await run.load_under(blows)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
                raise
            report.broke.append(_first_line(error))
            await cluster.heal()
        print(f"quiet after {time.monotonic() - began:.0f} s", file=sys.stderr)
        await asyncio.to_thread(_judge, report, run)


def _judge(report: Report, run: Run) -> None:
    report.history = run.history()
    report.verdict = check(report.history)
    outputs = [process.output_file for process in run.cluster.nodes]
    moved = moved_partitions([*outputs, *run.cluster.site.logs])
    if moved:
        report.broke.append(f"rows moved to another partition ({moved})")
    for text in tracebacks(outputs)[:5]:
        print(f"--- a node has said:\n{text}", file=sys.stderr)
    for violation in report.verdict.violations[:30]:
        print(violation, file=sys.stderr)
    again = [int(one.subject.split()[1]) for one in report.verdict.violations if one.promise is Promise.DUPLICATE]
    for text in audit.read_reaps(run.cluster.dsn, again) if again else []:
        print(text, file=sys.stderr)
    print(json.dumps(report.verdict.numbers), file=sys.stderr)


def _first_line(error: BaseException) -> str:
    """Return what went wrong, of a group its first part, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).strip().splitlines()
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
