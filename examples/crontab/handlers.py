"""A worker that runs the commands of imported crontabs.

Start it with `python -m worker_sdk examples.crontab.handlers:worker`. It runs whatever command a job asks for: see
"Who may submit" in README.md first.
"""

import os
from datetime import timedelta

from examples.crontab.process import CannotStart, CommandFailed, ShellCommand, ShellResult, run_command
from worker_sdk import Context, NonRetryable, Worker

# A name of its own for each machine keeps the commands of one machine's crontab on that machine.
HANDLER = os.environ.get("CRONTAB_HANDLER", "shell")

worker = Worker()


@worker.handler(HANDLER, max_concurrency=4, timeout=timedelta(hours=1))
async def shell(payload: ShellCommand, ctx: Context) -> ShellResult:
    """Run one command; an exit code other than 0 fails the attempt, with the end of the output as its error.

    Cancel, timeout and shutdown arrive as a cancellation, on which `run_command` ends the whole process group.
    """
    try:
        result = await run_command(payload)
    except CannotStart as error:
        raise NonRetryable(str(error)) from error
    ctx.logger.info(
        "exit code %d after %.1f s, %d bytes of output", result.exit_code, result.seconds, result.output_bytes
    )
    if result.exit_code != 0:
        raise CommandFailed(result)
    return result
