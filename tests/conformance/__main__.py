"""`python -m tests.conformance -- COMMAND…` prints the checklist; the exit code is 0 if the worker passes, else 1."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from tests.conformance.runner import examine


async def _run(command: Sequence[str]) -> int:
    failed = passed = 0
    async for verdict in examine(command):
        print(verdict, flush=True)
        failed += not verdict.passed
        passed += verdict.passed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    """Run the checklist as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description="Check a worker against the worker protocol."
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what starts the worker, after --")
    try:
        return asyncio.run(_run(parser.parse_args().command))
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
