"""`shardctl doctor`: what is wrong with the cluster, and what to do about it."""

from collections.abc import Iterator, Sequence
from typing import Final

from shard_manager.shardctl.command import Cli
from shard_manager.shardctl.failure import CommandFailedError
from shard_manager.shardctl.layout import Block, Column, Details, Line, Table
from shard_manager.shardctl.message_json import message_to_json
from shard_manager.shardctl.text import counted
from shardwheel.v1.admin_service_pb2 import DiagnoseRequest
from shardwheel.v1.diagnosis_pb2 import Diagnosis, Finding

WARNING_EXIT: Final = 3
CRITICAL_EXIT: Final = 4

_WORDS: Final = {Finding.CRITICAL: "critical", Finding.WARNING: "warning", Finding.INFO: "info"}


class FindingsError(CommandFailedError):
    """Ends the command with an exit code that tells the worst finding; everything has been printed."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


async def doctor(cli: Cli) -> None:
    """Look for what is wrong with database, cluster and settings, and say what to do about it.

    Exit code 0: nothing worse than something good to know; 3: warnings, or something could not be looked at; 4: jobs do
    not run, or may be lost; 1: no answer.
    """
    async with cli.connect() as connection:
        diagnosis = await connection.call(connection.admin.Diagnose, DiagnoseRequest())
    cli.output.emit(message_to_json(diagnosis), *_blocks(diagnosis))
    code = exit_code(diagnosis)
    if code:
        raise FindingsError(code)


def exit_code(diagnosis: Diagnosis) -> int:
    """The exit code that a diagnosis deserves."""
    worst = max((finding.severity for finding in diagnosis.findings), default=Finding.INFO)
    if worst >= Finding.CRITICAL:
        return CRITICAL_EXIT
    if worst == Finding.WARNING or any(check.trouble for check in diagnosis.checks):
        return WARNING_EXIT
    return 0


def _blocks(diagnosis: Diagnosis) -> Iterator[Block]:
    for finding in diagnosis.findings:
        subject = f" {finding.subject}" if finding.subject else ""
        yield Details(
            [
                (_WORDS.get(finding.severity, "unknown"), f"{finding.check}:{subject}: {finding.summary}"),
                ("do", finding.remedy),
            ]
        )
    failed = [check for check in diagnosis.checks if check.trouble]
    if failed:
        columns = (Column("NOT LOOKED AT"), Column("BECAUSE", minimum=20))
        yield Table(columns, [(check.check, check.trouble) for check in failed])
    yield Line(_summary(diagnosis.findings, len(diagnosis.checks) - len(failed), diagnosis.answered_by))


def _summary(findings: Sequence[Finding], looked: int, node: str) -> str:
    words = {Finding.CRITICAL: "critical finding", Finding.WARNING: "warning", Finding.INFO: "note"}
    numbers = {severity: sum(finding.severity == severity for finding in findings) for severity in words}
    counts = [counted(numbers[severity], word) for severity, word in words.items() if numbers[severity]]
    return f"{counted(looked, 'check')} by {node}: {', '.join(counts) or 'all is well'}"
