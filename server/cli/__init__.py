"""`shardwheel`, the command that runs nodes: `serve`, `migrate`, and on one machine `dev` and `demo`.

Settings come from flags and `SHARDWHEEL_*` variables. What goes wrong is said in one line on stderr that names the
setting and the remedy. Exit code 0 means done or stopped as asked, 2 refused input, 1 anything else.
"""

import os
import sys


def main() -> None:
    """Runs the command line of this process."""
    # The library's own log would mix with the lines that are written for people; an explicit setting is kept.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character shows a replacement, instead of ending the command.
            stream.reconfigure(errors="replace")
    # Imported here, for gRPC reads its environment when it is imported.
    from server.cli.command import app

    app(prog_name="shardwheel")


__all__ = ["main"]
