"""The shell handler of the crontab example as a worker calls it: payloads, outcomes and cancellation."""

import os
from pathlib import Path

import pytest

from examples.crontab.handlers import shell, worker
from examples.crontab.process import ShellCommand
from server.domain.crontab import CrontabEntry, parse_crontab
from tests.support.waiting import eventually
from worker_sdk.outcomes import CancelReason
from worker_sdk.testing import Outcome, run_handler_async


def test_the_worker_offers_the_handler_that_imported_schedules_ask_for() -> None:
    [definition] = worker.handlers
    assert definition.name == "shell"
    assert definition.max_concurrency == 4


async def test_the_payload_of_an_imported_entry_runs() -> None:
    [entry] = parse_crontab("A='x y'\n@daily cat; echo $A%line\n", system=False)
    assert isinstance(entry, CrontabEntry)
    payload = shell.definition.codec.decoder(ShellCommand)(shell.definition.codec.encode(entry.payload()))
    assert isinstance(payload, ShellCommand)
    done = await run_handler_async(shell, payload)
    assert done.outcome is Outcome.COMPLETED
    result = done.json()
    assert isinstance(result, dict)
    assert (result["exit_code"], result["output"], result["output_bytes"]) == (0, "line\nx y\n", 9)


async def test_a_bad_exit_code_fails_the_attempt_with_the_end_of_the_output() -> None:
    done = await run_handler_async(shell, ShellCommand(command="echo the disk is full >&2; exit 28"))
    assert done.outcome is Outcome.FAILED
    assert done.error_type == "CommandFailed"
    assert "exit code 28" in done.error_message
    assert "the disk is full" in done.error_message
    assert not done.non_retryable


async def test_what_cannot_start_is_not_retried() -> None:
    done = await run_handler_async(shell, ShellCommand(command="true", user="no-such-user"))
    assert done.outcome is Outcome.FAILED
    assert done.non_retryable
    assert "no user 'no-such-user'" in done.error_message


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(CancelReason.TIMEOUT, Outcome.STOPPED), (CancelReason.SHUTDOWN, Outcome.INTERRUPTED)],
)
async def test_a_cancelled_attempt_leaves_no_process_behind(
    reason: CancelReason, outcome: Outcome, tmp_path: Path
) -> None:
    command = ShellCommand(command=f"echo $$ > {tmp_path}/pid; sleep 300; echo never > {tmp_path}/end")
    done = await run_handler_async(shell, command, cancel_after=2, cancel_reason=reason)
    assert done.outcome is outcome
    pid = int((tmp_path / "pid").read_text())
    await eventually(lambda: not os.path.exists(f"/proc/{pid}"), what="the end of the command")
    assert not (tmp_path / "end").exists()
