"""The command line as a whole."""

import os
import sys

from shard_manager.shardctl import handlers, jobs, namespaces, schedules, steering, tokens, workers
from shard_manager.shardctl.command import command, group
from shard_manager.shardctl.doctor import doctor
from shard_manager.shardctl.status import nodes, shards, status
from shard_manager.shardctl.top import top

app = group(
    "Look at and steer a Shardwheel cluster.\n\n"
    "The options below may stand before or after the command. -o json prints one JSON document. Exit code 0: done; "
    "1: failed, or the job waited for did not complete; 2: refused input."
)
command(app, "status")(status)
command(app, "nodes")(nodes)
command(app, "shards")(shards)
command(app, "top")(top)
command(app, "doctor")(doctor)
command(app, "rebalance")(steering.rebalance)
command(app, "drain")(steering.drain)
command(app, "undrain")(steering.undrain)
command(app, "evict")(steering.evict)
command(app, "move")(steering.move)
command(app, "pause-rebalance")(steering.pause_rebalance)
command(app, "resume-rebalance")(steering.resume_rebalance)
app.add_typer(jobs.app, name="jobs")
app.add_typer(schedules.app, name="schedules")
app.add_typer(handlers.app, name="handlers")
app.add_typer(workers.app, name="workers")
app.add_typer(namespaces.app, name="namespaces")
app.add_typer(tokens.app, name="tokens")


def main() -> None:
    """Runs the command line of this process."""
    # The library's own log would mix with the errors that are written for people; an explicit setting is kept.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character shows a replacement, instead of ending the command.
            stream.reconfigure(errors="replace")
    app(prog_name="shardctl")
