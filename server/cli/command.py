"""The command line as a whole. What a command needs is imported when it runs, so that help appears at once."""

import os
from pathlib import Path
from typing import Annotated

import typer

from server.cli.failure import FAILED, told_to_people
from server.cli.setting_flags import check_database, takes_settings
from server.cli.version import installed_version
from server.config import PREFIX, NodeConfig
from server.demo.settings import CoordinatorKind, DemoSettings, Kill

# Plain help and errors: panels would break an error text over several lines, which no script can search.
app = typer.Typer(
    help="Run Shardwheel nodes.\n\nExit code 0: done, or stopped as asked; 1: failed; 2: refused input.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"shardwheel {installed_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    assert not version


@takes_settings
def _serve(config: NodeConfig) -> None:
    """Serve as one node of a cluster, until SIGTERM or SIGINT; a second signal ends it at once.

    The database needs its schema first: shardwheel migrate.
    """
    from server.cli.serve import serve

    serve(config)


app.command("serve")(_serve)


@app.command("migrate")
def _migrate(
    database: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Connection URI of PostgreSQL. Required. [env: SHARDWHEEL_DATABASE]"),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", help="Number of shards of a new database, for ever. [default: 64]")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", help="Number of partitions of a new database. [default: 16]")
    ] = None,
    admin_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Let whoever holds the token in this file do everything; a file that is not there is made, with a new "
            "token in it. Ends open access for good.",
        ),
    ] = None,
) -> None:
    """Make the schema of a new database, or bring an older one up to date. Safe to run again, and while nodes run."""
    from server.cli.migrate import migrate

    with told_to_people():
        uri = database or os.environ.get(f"{PREFIX}DATABASE", "")
        check_database(uri)
        migrate(uri, shards, partitions, admin_token_file)


@takes_settings
def _change_coordinator(config: NodeConfig) -> None:
    """Put another coordinator in charge of the cluster: the one that --coordinator names.

    Stop the nodes before, and start them with the new one's settings afterwards. Nodes that still run end by
    themselves. Leases of the new coordinator outrank those of the old one.
    """
    from server.cli.change_coordinator import change

    change(config)


app.command("change-coordinator")(_change_coordinator)


@app.command("dev")
def _dev(
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Everything is kept here. [default: .shardwheel]")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="gRPC port; 0 takes a free one.")] = 7400,
    http_port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="HTTP port; 0 takes a free one. [default: 7480]"),
    ] = None,
    postgres_port: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=65535, help="Port of PostgreSQL. [default: a free one, kept]"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="TEXT", help="json or text. [default: text on a terminal, else json]")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="TEXT", help="debug, info, warning or error. [default: warning]")
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Once it serves, write its addresses here as JSON, for programs."),
    ] = None,
    until_stdin_ends: Annotated[
        bool, typer.Option("--until-stdin-ends", help="Stop when stdin ends as well, as it does with a parent process.")
    ] = False,
) -> None:
    """Run one node with a PostgreSQL of its own, on this machine only: no set-up, data kept over restarts.

    Variables work as for serve, but for SHARDWHEEL_DATABASE, _NODE and _LISTEN.
    """
    from server.cli.dev import dev

    with told_to_people():
        dev(
            data_dir=data_dir,
            port=port,
            http_port=http_port,
            postgres_port=postgres_port,
            log_format=log_format,
            log_level=log_level,
            ready_file=ready_file,
            until_stdin_ends=until_stdin_ends,
        )


@app.command("demo")
def _demo(
    jobs: Annotated[int, typer.Option(metavar="N", help="Jobs to run, 100 to 1000000.")] = 20_000,
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes, 1 to 8.")] = 3,
    workers: Annotated[int, typer.Option(metavar="N", help="Workers, 1 to 16.")] = 3,
    kill: Annotated[
        Kill, typer.Option(help="What to kill (-9) half-way. The only one of its kind is started again at once.")
    ] = Kill.NODE,
    coordinator: Annotated[
        CoordinatorKind | None,
        typer.Option(help="Who grants leases of shards. [default: zookeeper if it is here, else postgres]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Run a small cluster of real processes in a temporary folder, hit it half-way, and account for each job.

    Exit code 0 only if no job was lost and none started early.
    """
    from server.cli.demo import demo

    with told_to_people():
        settings = DemoSettings(jobs=jobs, nodes=nodes, workers=workers, kill=kill)
        if not demo(settings, coordinator, as_json=as_json):
            raise typer.Exit(FAILED)
