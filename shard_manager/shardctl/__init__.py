"""`shardctl`, the operator's command line: it talks to any node over the public API and keeps nothing itself.

Results go to stdout as tables of at most 80 columns (wider on a wider terminal), or with `-o json` as one document
whose keys are those of the API; notes, progress and errors go to stderr. Exit code 0 means done, 2 refused input, 1
anything else. Every call has a deadline. Previews of schedules and the reading of crontabs need no server.
"""

from shard_manager.shardctl.main import main

__all__ = ["main"]
