"""`shardwheel demo`: a small cluster that is hit half-way, and an account of what became of each job."""

from dataclasses import replace

import orjson

from server.cli.failure import CommandFailed, one_line
from server.cli.running import run_loop, say, stop_signals, unless_asked_to_stop
from server.demo.cluster import ProcessEnded
from server.demo.leases import choose
from server.demo.report import Report
from server.demo.run import run_demo
from server.demo.settings import CoordinatorKind, DemoSettings
from server.demo.view import open_view, print_table
from server.embedded import EmbeddedPostgresError, EmbeddedZookeeperError
from server.observe.logging import configure_logging, masked
from worker_sdk.errors import ShardwheelError


def demo(settings: DemoSettings, coordinator: CoordinatorKind | None, *, as_json: bool) -> bool:
    """Run it, print the account, and return whether nothing was lost and nothing early. Raises `CommandFailed`.

    `coordinator`: by default ZooKeeper if it is here, else PostgreSQL.
    """
    configure_logging("text", "error")
    try:
        choice = choose(coordinator)
    except EmbeddedZookeeperError as error:
        raise CommandFailed(f"--coordinator: {error}") from error
    settings = replace(settings, coordinator=choice.kind)
    say(
        f"coordinator {settings.coordinator}: {settings.nodes} node(s), {settings.workers} worker(s), "
        f"{settings.jobs} jobs, kill {settings.kill}"
    )
    if choice.regret:
        say(f"PostgreSQL grants the leases: {choice.regret}")
    report = run_loop(_demo(settings, live=not as_json))
    print_table(report)
    if as_json:
        say(orjson.dumps(report.as_json()).decode())
    return report.good


async def _demo(settings: DemoSettings, *, live: bool) -> Report:
    async with stop_signals() as asked:
        with open_view(settings.jobs, live=live) as view:
            try:
                report = await unless_asked_to_stop(run_demo(settings, view), asked)
            except (EmbeddedPostgresError, EmbeddedZookeeperError, ProcessEnded) as error:
                raise CommandFailed(masked(str(error))) from error
            except ShardwheelError as error:
                raise CommandFailed(one_line(error)) from error
    if report is None:
        raise KeyboardInterrupt
    return report
