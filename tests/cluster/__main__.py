"""`python -m tests.cluster`: a chaos run. The last line it prints is a JSON object; it exits with 0 if all is well."""

import argparse
import sys
from pathlib import Path

from tests.cluster.chaos import Options, run_chaos
from tests.cluster.nemeses import REGISTRY


def main() -> int:
    """Read the options, carry out the run, print its report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description="Breaks a cluster at random under load."
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the load lasts")
    parser.add_argument("--seed", type=int, default=1, help="decides on load, faults, and what the cluster consists of")
    parser.add_argument("--faults", default="", help="kinds with commas between; all that are possible by default")
    parser.add_argument("--every", type=float, default=3.2, help="seconds between two faults, on average")
    parser.add_argument("--rate", type=float, default=500.0, help="jobs per second, without those of schedules")
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=None, help="a folder for logs and journals")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults")
    parser.add_argument(
        "--secure", action=argparse.BooleanOptionalAction, default=True, help="TLS and tokens (on by default)"
    )
    for name, text in _PARTS.items():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=text)
    given = parser.parse_args()
    if given.list:
        for kind, fault in sorted(REGISTRY.items()):
            print(kind, *sorted(fault.needs))
        return 0
    faults = [kind.strip() for kind in given.faults.split(",") if kind.strip()]
    unknown = [kind for kind in faults if kind not in REGISTRY]
    if unknown:
        parser.error(f"no such faults: {', '.join(unknown)} (see --list)")
    parts = {name: getattr(given, name) for name in _PARTS}
    by_seed = {name: given.seed % len(_PARTS) == number for number, name in enumerate(_PARTS)}
    report = run_chaos(
        Options(
            minutes=given.minutes, seed=given.seed, faults=faults, every_s=given.every, rate=given.rate,
            schedules=given.schedules, nodes=given.nodes, workers=given.workers, keep=given.keep,
            secure=given.secure,
            **{name: by_seed[name] if value is None else value for name, value in parts.items()},
        )
    )  # fmt: skip
    print(report.as_json(), flush=True)
    return 0 if report.word == "ok" else 1


_PARTS = {
    "ensemble": "three servers of ZooKeeper instead of one (by default every fourth seed)",
    "standby": "PostgreSQL with a synchronous standby (every fourth seed)",
    "clock": "PostgreSQL on a clock that can be moved; needs libfaketime (every fourth seed)",
    "disk": "PostgreSQL on a small disk; needs the right to mount (every fourth seed)",
}

if __name__ == "__main__":
    sys.exit(main())
