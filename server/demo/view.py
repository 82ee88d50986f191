"""What a demo shows: progress, nodes and events on stderr while it runs, the table on stdout in the end."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from server.demo.report import Report
from server.demo.settings import Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """What is shown of a node."""

    name: str
    shards: int
    jobs_per_s: float
    killed: bool


_BAR_CHARS: Final = 32


class View(Protocol):
    """Shows what happens."""

    def event(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def progress(self, *, submitted: int, completed: int, nodes: Sequence[NodeRow]) -> None:
        """Show how far it is, and what each node does."""
        ...


class PlainView:
    """Events only, for logs and pipes."""

    def event(self, text: str) -> None:
        """Show a line."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, *, submitted: int, completed: int, nodes: Sequence[NodeRow]) -> None:
        """Show nothing."""


class LiveView:
    """Two bars and the nodes on a terminal, with the events above them."""

    def __init__(self, live: Live, jobs: int) -> None:
        self._live = live
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = bars = Progress(*columns)
        self._submitted = bars.add_task("submitted", total=jobs)
        self._completed = bars.add_task("completed", total=jobs)

    def event(self, text: str) -> None:
        """Show a line above the bars."""
        self._live.console.print(text, markup=False, highlight=False)

    def progress(self, *, submitted: int, completed: int, nodes: Sequence[NodeRow]) -> None:
        """Move the bars."""
        self._bars.update(self._submitted, completed=submitted)
        self._bars.update(self._completed, completed=completed)
        self._live.update(Group(_node_table(nodes), self._bars))


@contextmanager
def open_view(jobs: int, *, live: bool) -> Iterator[View]:
    """A view: live if that is wanted and stderr is a terminal."""
    console = Console(stderr=True)
    if not (live and console.is_terminal):
        yield PlainView()
        return
    with Live(console=console, transient=True) as picture:
        yield LiveView(picture, jobs)


def _node_table(nodes: Sequence[NodeRow]) -> Table:
    """One line per node: a bar of its shards, and its rate."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("node", no_wrap=True)
    table.add_column("shards", justify="right", no_wrap=True)
    table.add_column(width=_BAR_CHARS, no_wrap=True)
    table.add_column("jobs/s", justify="right", no_wrap=True)
    total = sum(node.shards for node in nodes)
    for node in nodes:
        bar = "█" * round(_BAR_CHARS * node.shards / total) if total else ""
        name = f"{node.name} killed" if node.killed else node.name
        table.add_row(name, str(node.shards), bar, f"{node.jobs_per_s:,.0f}", style="red" if node.killed else "")
    return table


def print_table(report: Report) -> None:
    """Print the account with the meaning of each number."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for row in _rows(report):
        table.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(table)


def _rows(report: Report) -> list[tuple[str, str, str]]:
    rows = [
        ("submitted", str(report.submitted), "jobs whose submit was answered"),
        ("completed", str(report.completed), "of them ran to their end, by the workers' files"),
        ("failed", str(report.failed), "ended as failed or cancelled, by the cluster's word"),
        ("lost", str(report.lost), "never ran to their end"),
        ("duplicates", str(report.duplicates), _duplicates(report)),
        ("early", str(report.early), "started before they were due"),
        (
            "jobs per second",
            f"{report.jobs_per_s:,.0f}",
            "in the burst, until the kill" if report.victim else "in the burst",
        ),
        ("start, p50", _ms(report.start_ms_p50), "after the due time, on the idle cluster"),
        ("start, p99", _ms(report.start_ms_p99), "the same"),
    ]
    if report.killed is Kill.WORKER:
        rows.append(("recovered", _ms(report.recovered_ms), f"after kill -9 of {report.victim}: a new job has run"))
    if report.killed is Kill.NODE:
        served = f"after kill -9 of {report.victim}: all of its shards are served again"
        rows.append(("recovered", _ms(report.recovered_ms), served))
        rows.append(("moved shards", str(report.moved_shards), f"of {report.victim} to other nodes"))
        rows.append(("carried on", str(report.carried_on), f"jobs of {report.victim} that ran on through its death"))
    if report.rerun_ms is not None:
        rows.append(("run again", _ms(report.rerun_ms), f"after the kill: all that {report.victim} was running"))
    return rows


def _duplicates(report: Report) -> str:
    others = report.duplicates - report.expected_duplicates
    if not report.duplicates:
        return "executions beyond one per job"
    if not others:
        return f"executions beyond one per job: what {report.victim} was running when it was killed"
    return f"executions beyond one per job, {others} of them NOT explained by the kill of a worker"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
