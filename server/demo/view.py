"""What a demo shows: progress and events on stderr while it runs, the table on stdout in the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from server.demo.report import Report
from server.demo.settings import Kill


class View(Protocol):
    """Shows what happens."""

    def event(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def progress(self, *, submitted: int, completed: int) -> None:
        """Show how far it is."""
        ...


class PlainView:
    """Events only, for logs and pipes."""

    def event(self, text: str) -> None:
        """Show a line."""
        print(text, file=sys.stderr, flush=True)

    def progress(self, *, submitted: int, completed: int) -> None:
        """Show nothing."""


class LiveView:
    """Two bars on a terminal, with the events above them."""

    def __init__(self, bars: Progress, jobs: int) -> None:
        self._bars = bars
        self._submitted = bars.add_task("submitted", total=jobs)
        self._completed = bars.add_task("completed", total=jobs)

    def event(self, text: str) -> None:
        """Show a line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def progress(self, *, submitted: int, completed: int) -> None:
        """Move the bars."""
        self._bars.update(self._submitted, completed=submitted)
        self._bars.update(self._completed, completed=completed)


@contextmanager
def open_view(jobs: int, *, live: bool) -> Iterator[View]:
    """A view: live if that is wanted and stderr is a terminal."""
    console = Console(stderr=True)
    if not (live and console.is_terminal):
        yield PlainView()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        yield LiveView(bars, jobs)


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
    if report.killed is not Kill.NONE:
        rows.append(("recovered", _ms(report.recovered_ms), f"after kill -9 of {report.victim}: a new job has run"))
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
