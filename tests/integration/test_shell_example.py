"""The shell handler of the crontab example with real processes: results, caps, accounts, and nothing left behind."""

import asyncio
import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest

from examples.crontab.group import ProcessGroup
from examples.crontab.process import (
    ERROR_OUTPUT_LIMIT,
    OUTPUT_LIMIT,
    CannotStart,
    CommandFailed,
    ShellCommand,
    ShellResult,
    run_command,
)
from server.domain.cron import parse_cron
from server.domain.crontab import CrontabEntry, parse_crontab
from server.domain.zones import load_zone
from tests.support.waiting import eventually, wait_until
from worker_sdk.codec import JsonCodec

OWN = pwd.getpwuid(os.geteuid())
SAMPLE = (Path(__file__).parents[2] / "examples" / "crontab" / "sample.crontab").read_bytes()
RESULT_LIMIT = 256 * 1024  # the server's default
PYTHON = shlex.quote(sys.executable)


async def run(command: str, *, stdin: str | None = None, environment: dict[str, str] | None = None) -> ShellResult:
    return await run_command(ShellCommand(command=command, stdin=stdin, environment=environment or {}))


def folder_of(account: pwd.struct_passwd) -> str:
    home = Path(account.pw_dir)
    return str(home.resolve()) if home.is_dir() else "/"


def is_running(pid: int) -> bool:
    """Whether a process does anything still; one that nobody has collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def start(command: str, folder: Path, kill_after: timedelta) -> tuple[asyncio.Task[ShellResult], list[int]]:
    """Start a command that writes its pids, one a line, and `ready` to the file $PIDS; return them."""
    file = folder / "pids"
    shell = ShellCommand(command=command, environment={"PIDS": str(file), "DIR": str(folder)})
    task = asyncio.ensure_future(run_command(shell, kill_after=kill_after))
    await eventually(lambda: task.done() or (file.exists() and "ready" in file.read_text()), what="the command's pids")
    pids = [int(line) for line in file.read_text().split() if line != "ready"]
    assert all(map(is_running, pids))
    return task, pids


async def test_output_and_errors_come_back_in_their_order() -> None:
    result = await run("echo one; echo two >&2; echo three")
    assert (result.exit_code, result.output, result.output_bytes) == (0, "one\ntwo\nthree\n", 14)
    assert 0 < result.seconds < 60


async def test_a_bad_exit_code_is_a_result_whose_failure_shows_the_output() -> None:
    result = await run("echo about to fail; exit 3")
    assert result.exit_code == 3
    assert str(CommandFailed(result)).startswith("exit code 3 after ")
    assert str(CommandFailed(result)).endswith("s\nabout to fail")
    assert str(CommandFailed(await run("exit 4"))) == "exit code 4"


async def test_death_by_a_signal_is_named() -> None:
    result = await run("kill -9 $$")
    assert result.exit_code == -9
    assert str(CommandFailed(result)) == "ended by SIGKILL"


async def test_the_environment_is_crons_and_nothing_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "1")
    result = await run("env; pwd", environment={"GREETING": "hello world", "LOGNAME": "somebody", "PATH": "/bin:/x"})
    *variables, folder = result.output.splitlines()
    found = {name: value for name, _, value in (line.partition("=") for line in variables) if name not in ("PWD", "_")}
    assert found.pop("SHLVL", "0") == "0"
    assert found.pop("OLDPWD", "") == ""
    assert found == {
        "HOME": OWN.pw_dir,
        "LOGNAME": OWN.pw_name,
        "USER": OWN.pw_name,
        "SHELL": "/bin/sh",
        "PATH": "/bin:/x",
        "GREETING": "hello world",
    }
    assert folder == folder_of(OWN)


async def test_the_crontab_may_choose_home_and_shell(tmp_path: Path) -> None:
    assert (await run("pwd", environment={"HOME": str(tmp_path)})).output == f"{tmp_path}\n"
    assert (await run("pwd", environment={"HOME": "/no/such/folder"})).output == "/\n"
    command = ShellCommand(command="[[ a == a ]] && echo $BASH_VERSION", shell="/bin/bash")
    assert (await run_command(command)).output.strip()


async def test_input_is_given_or_empty() -> None:
    assert (await run("cat", stdin="one\ntwo ü\n")).output == "one\ntwo ü\n"
    assert (await run("cat")).output == ""
    big = "x" * 300_000
    assert (await run("sleep 0; wc -c", stdin=big)).output.strip() == "300000"
    assert (await run("true", stdin=big)).exit_code == 0


async def test_of_a_large_output_the_end_is_kept() -> None:
    result = await run(f"{PYTHON} -c \"print('a' * 3_000_000); print('ü' * 40_000 + 'end')\"")
    assert result.output_bytes == 3_000_001 + 80_004
    assert result.output.endswith("ü" * 30_000 + "end\n")
    assert len(result.output.encode()) <= OUTPUT_LIMIT + 2  # a cut character becomes a replacement
    assert len(str(CommandFailed(result))) <= ERROR_OUTPUT_LIMIT + 100


async def test_an_output_that_is_no_text_is_cleaned() -> None:
    result = await run(r"printf 'a\377b\000c\033[1md\t\r\n'")
    assert result.output == "a\ufffdb\ufffdc\ufffd[1md\t\r\n"


@pytest.mark.parametrize("data", [r"b'\x01'", r"b'\xff'", r"b'\\'", r"b'\n'", r"'ü'.encode()"])
async def test_the_largest_output_fits_into_a_result(data: str) -> None:
    result = await run(f"{PYTHON} -c {shlex.quote(f'import sys; sys.stdout.buffer.write({data} * 100_000)')}")
    assert result.output_bytes >= 100_000
    assert len(JsonCodec().encode(result)) < RESULT_LIMIT


async def test_an_entry_of_a_crontab_runs_as_cron_would_run_it(tmp_path: Path) -> None:
    text = (
        f"GREETING='good morning'\n0 5 * * * cat > {tmp_path}/mail; date +\\%Y; echo $GREETING%Dear all,%100\\% true\n"
    )
    [entry] = parse_crontab(text, system=False)
    assert isinstance(entry, CrontabEntry)
    command = ShellCommand(
        command=entry.command,
        stdin=entry.stdin,
        environment=dict(entry.environment),
        user=entry.user,
        shell=entry.shell,
    )
    assert asdict(command) == entry.payload()
    assert JsonCodec().decoder(ShellCommand)(json.dumps(entry.payload()).encode()) == command
    year, greeting = (await run_command(command)).output.splitlines()
    assert year.isdigit()
    assert greeting == "good morning"
    assert (tmp_path / "mail").read_text() == "Dear all,\n100% true\n"


async def test_the_sample_crontab_does_what_it_says() -> None:
    entries = parse_crontab(SAMPLE, system=False, validate=parse_cron, validate_time_zone=load_zone)
    outputs = {}
    for entry in entries:
        assert isinstance(entry, CrontabEntry)
        command = ShellCommand(command=entry.command, stdin=entry.stdin, environment=dict(entry.environment))
        result = await run_command(command)
        outputs[entry.command.split()[0], result.exit_code] = result.output
    assert list(outputs) == [("echo", 0), ("cat", 0), ("df", 0), ("echo", 3)]
    assert outputs["echo", 0].startswith("good morning from ")
    assert outputs["cat", 0].endswith("a percent sign starts the input, % stands for itself.\n")


async def test_cancelling_ends_the_whole_group_and_lets_it_clean_up(tmp_path: Path) -> None:
    task, pids = await start(
        "trap 'echo cleaned > $DIR/cleaned; exit 0' TERM; sleep 300 & echo $$ $! > $PIDS; echo ready >> $PIDS; wait",
        tmp_path,
        timedelta(hours=1),
    )
    assert len(pids) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 20)
    assert not any(map(is_running, pids))
    assert (tmp_path / "cleaned").read_text() == "cleaned\n"


def test_a_dead_member_that_nobody_has_collected_does_not_keep_a_group_alive() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, start_new_session=True) as leader:
        group = ProcessGroup(leader.pid)
        assert group.is_alive()
        leader.kill()
        wait_until(lambda: not is_running(leader.pid), what="the death of the leader")
        assert group.signal(0)
        assert not group.is_alive()
    assert not group.signal(0)


STUBBORN = "trap '' TERM; sleep 300 & echo $$ $! > $PIDS; echo ready >> $PIDS; wait"


async def test_who_ignores_the_request_is_killed(tmp_path: Path) -> None:
    task, pids = await start(STUBBORN, tmp_path, timedelta(milliseconds=200))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not any(map(is_running, pids)), what="the end of the group")


async def test_members_that_outlive_the_leader_are_killed_too(tmp_path: Path) -> None:
    task, pids = await start(
        "(trap '' TERM; echo $$ > $PIDS; sleep 300 & echo $! >> $PIDS; echo ready >> $PIDS; wait) & wait",
        tmp_path,
        timedelta(milliseconds=200),
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not any(map(is_running, pids)), what="the end of the group")


async def test_a_second_cancellation_cuts_the_grace_short(tmp_path: Path) -> None:
    task, pids = await start(STUBBORN, tmp_path, timedelta(hours=1))
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 10)
    await eventually(lambda: not any(map(is_running, pids)), what="the end of the group")


async def test_a_timeout_ends_the_group(tmp_path: Path) -> None:
    task, pids = await start(
        "sleep 300 & echo $$ $! > $PIDS; echo ready >> $PIDS; wait", tmp_path, timedelta(seconds=5)
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await task
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancellation_at_the_start_leaves_nothing_behind(steps: int, tmp_path: Path) -> None:
    """After each of the first steps of the event loop: before, while and after the process comes to life."""
    marker = tmp_path / "marker"
    task = asyncio.ensure_future(run(f"echo $$ > {marker}; exec sleep 300"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if marker.exists() and marker.read_text().strip():
        assert not is_running(int(marker.read_text()))


async def test_a_process_in_the_background_does_not_hold_up_the_end() -> None:
    result = await asyncio.wait_for(run("echo started; sleep 300 & echo $!"), 30)
    assert result.exit_code == 0
    started, pid = result.output.split()
    assert started == "started"
    assert is_running(int(pid))
    os.kill(int(pid), signal.SIGKILL)


async def test_commands_run_side_by_side() -> None:
    results = await asyncio.gather(*(run(f"echo {n}; exit {n}") for n in range(8)))
    assert [(result.exit_code, result.output) for result in results] == [(n, f"{n}\n") for n in range(8)]


async def test_the_event_loop_may_be_in_any_thread() -> None:
    assert (await asyncio.to_thread(lambda: asyncio.run(run("echo x")))).output == "x\n"


async def test_no_descriptor_stays_open() -> None:
    await run("true")
    before = sorted(os.listdir("/proc/self/fd"))
    await run("echo x", stdin="y")
    with pytest.raises(CannotStart):
        await run_command(ShellCommand(command="true", shell="/no/such/shell"))
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_another_account_is_taken_on_by_root_and_refused_to_others() -> None:
    command = ShellCommand(command="id -un; id -gn; echo $HOME $USER; pwd", user="nobody", shell="/bin/sh")
    if os.geteuid() != 0:
        with pytest.raises(CannotStart, match="cannot become nobody; start it as root"):
            await run_command(command)
        return
    nobody = pwd.getpwnam("nobody")
    user, _group, names, folder = (await run_command(command)).output.splitlines()
    assert user == "nobody"
    assert names == f"{nobody.pw_dir} nobody"
    assert folder == folder_of(nobody)


async def test_the_own_account_by_name_needs_no_right() -> None:
    assert (await run_command(ShellCommand(command="id -un", user=OWN.pw_name))).output == f"{OWN.pw_name}\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (ShellCommand(command="true", user="no-such-user"), "no user 'no-such-user'"),
        (ShellCommand(command="true", user=f"{OWN.pw_name}:no-such-group"), "no group 'no-such-group'"),
        (ShellCommand(command="true", shell="/no/such/shell"), "cannot start /no/such/shell"),
        (ShellCommand(command="true", shell="/"), "cannot start /"),
        (ShellCommand(command="echo \0"), "null"),
        (ShellCommand(command="true", environment={"A=B": "1"}), "environment variable name"),
        (ShellCommand(command="x" * 3_000_000), "cannot start /bin/sh"),
    ],
)
async def test_what_no_retry_can_mend_cannot_start(command: ShellCommand, reason: str) -> None:
    with pytest.raises(CannotStart, match=reason):
        await run_command(command)
