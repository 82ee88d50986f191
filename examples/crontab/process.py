"""Runs one command of a crontab the way cron does, and never leaves its processes behind.

The command is read by its shell in a session of its own, in the home folder of its user, with the few variables that
cron sets and those of the crontab; nothing of the caller's environment is passed on. Output and errors go to one pipe,
of which the end is kept. A caller that is cancelled ends the whole process group: SIGTERM first, SIGKILL after a grace.

Not done: mail; PAM and login classes; and a process that leaves the group (setsid) escapes the signals.
"""

import asyncio
import errno
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import IO, Final

from examples.crontab.account import Account, UnknownAccount, find_account
from examples.crontab.group import ProcessGroup
from examples.crontab.output import OutputPipe

OUTPUT_LIMIT: Final = 64 * 1024
ERROR_OUTPUT_LIMIT: Final = 8 * 1024
"""Characters of output that go into the text of a failure; the rest is in no result, for there is none."""

KILL_AFTER: Final = timedelta(seconds=5)
"""From SIGTERM to SIGKILL; shorter than the server's default kill grace of 10 s."""

# How long output is still read when the command itself has ended but a background process keeps the pipe open.
_LINGER_S: Final = 1.0
_GROUP_POLL_S: Final = 0.05
_CANNOT_CHANGE: Final = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.E2BIG,
    errno.ENAMETOOLONG,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """A line of a crontab as a payload: what `shardctl schedules import` puts into the jobs of its schedules."""

    command: str
    stdin: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    """Account to run as, `name` or `name:group`; None is that of the worker."""
    shell: str = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """How a command ended. `exit_code` is minus the number of the signal if one ended it."""

    exit_code: int
    output: str
    """The end of output and errors, in their order."""
    output_bytes: int
    """How much there was in all."""
    seconds: float


class CannotStart(Exception):
    """The command cannot be started here, now or later: no such account, shell or right. A retry is of no use."""


class CommandFailed(Exception):
    """The command ended with an exit code other than 0, or by a signal. The text has the end of its output."""

    def __init__(self, result: ShellResult) -> None:
        code = result.exit_code
        ended = f"ended by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        output = result.output[-ERROR_OUTPUT_LIMIT:].strip()
        super().__init__(f"{ended} after {result.seconds:.1f} s\n{output}" if output else ended)
        self.result = result


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def run_command(
    command: ShellCommand, *, output_limit: int = OUTPUT_LIMIT, kill_after: timedelta = KILL_AFTER
) -> ShellResult:
    """Run a command to its end and return how it ended; a bad exit code is a result as well.

    `output_limit` is in bytes. Raise CannotStart for what no retry can mend. If the caller is cancelled, all processes
    of the command are gone, or have been sent SIGKILL, when the cancellation goes on.
    """
    started = monotonic()
    with OutputPipe(output_limit) as output, _input(command.stdin) as stdin:
        process = await _start(command, stdin, output, kill_after)
        try:
            exit_code = await process.wait()
            await output.read_to_the_end(_LINGER_S)
        except asyncio.CancelledError:
            await _end(process, kill_after)
            raise
        except BaseException:
            ProcessGroup(process.pid).signal(signal.SIGKILL)  # no time for more, for instance at the end of the program
            raise
        return ShellResult(
            exit_code=exit_code, output=output.text(), output_bytes=output.count, seconds=monotonic() - started
        )


@contextmanager
def _input(text: str | None) -> Iterator[IO[bytes] | int]:
    """The standard input as a file: unlike a pipe it cannot block, whether or not the command reads it."""
    if text is None:
        yield asyncio.subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file


async def _start(
    command: ShellCommand, stdin: IO[bytes] | int, output: OutputPipe, kill_after: timedelta
) -> asyncio.subprocess.Process:
    try:
        account = find_account(command.user)
        environment = environment_for(command, account)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                command.shell,
                "-c",
                command.command,
                stdin=stdin,
                stdout=output.write_end,
                stderr=output.write_end,
                env=environment,
                cwd=_folder(environment),
                start_new_session=True,
                **account.switch(),
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _end(await starting, kill_after)
            raise
    except (UnknownAccount, ValueError) as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        if error.errno in _CANNOT_CHANGE:
            raise CannotStart(f"cannot start {command.shell}: {error}") from error
        raise
    output.close_write_end()
    return process


def environment_for(command: ShellCommand, account: Account) -> Mapping[str, str]:
    """Return the variables that cron gives to a command: its own few, then the crontab's, save for the name."""
    names = {"LOGNAME": account.name, "USER": account.name}
    own = {"HOME": account.home, "SHELL": command.shell, "PATH": "/usr/bin:/bin"}
    return {**own, **command.environment, **names}


def _folder(environment: Mapping[str, str]) -> str:
    home = environment["HOME"]
    return home if Path(home).is_dir() else "/"


async def _end(process: asyncio.subprocess.Process, kill_after: timedelta) -> None:
    """End all processes of the group; a second cancellation on the way shortens the grace to nothing."""
    group = ProcessGroup(process.pid)
    try:
        group.signal(signal.SIGTERM)
        async with asyncio.timeout(kill_after.total_seconds()):
            await process.wait()
            while group.is_alive():  # noqa: ASYNC110 - nothing tells when the last member has ended
                await asyncio.sleep(_GROUP_POLL_S)
    except TimeoutError:
        pass
    finally:
        group.signal(signal.SIGKILL)
    await process.wait()
