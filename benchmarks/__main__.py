"""`python -m benchmarks [SCENARIO …] [--quick] [--json]`; without a scenario, all of them."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from benchmarks import claim_future, idle
from benchmarks.cluster import eight, large, membership, outage, workers
from benchmarks.kafka import throughput as kafka
from benchmarks.report import Report


class Scenario(Protocol):
    """Measures one thing."""

    def __call__(self, *, quick: bool) -> Awaitable[Report]: ...


SCENARIOS: dict[str, Scenario] = {
    "claim-future": claim_future.run,
    "idle": idle.run,
    "kafka": kafka.run,
    "cluster-node-kill": membership.kill,
    "cluster-node-stop": membership.stop,
    "cluster-join": membership.join,
    "cluster-zookeeper-outage": outage.zookeeper,
    "cluster-node-pause": outage.pause,
    "cluster-worker": workers.run,
    "cluster-large": large.large,
    "cluster-large-processes": eight.run,
    "cluster-idle": large.idle,
}


def main(write: Callable[[str], None] = print) -> None:
    """Run scenarios and print what they measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer runs, at most 45 s")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    for name in arguments.scenario or SCENARIOS:

        async def measure(scenario: Scenario = SCENARIOS[name]) -> Report:
            return await scenario(quick=arguments.quick)

        report = asyncio.run(measure())
        write(report.as_json() if arguments.json else report.as_text())


if __name__ == "__main__":
    main()
