"""`shardwheel dev`: a PostgreSQL and one node in one go, on this machine only."""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from server.app import Node
from server.cli.failure import CommandFailed
from server.cli.next_steps import next_steps
from server.cli.running import check_listen, explained, run_loop, run_node, say, stop_signals, unless_asked_to_stop
from server.cli.version import installed_version
from server.config import OFF, PREFIX, NodeConfig, load_config
from server.embedded import EmbeddedPostgres, EmbeddedPostgresError
from server.embedded.folder import ServerFolder
from server.embedded.port import LOOPBACK
from server.observe.logging import configure_logging
from server.store.migrate import migrate

# Ctrl-C ends everything within 5 s, PostgreSQL included.
_DRAIN_GRACE: Final = "2s"
_POSTGRES_STOP_S: Final = 2.0
_WATCH_S: Final = 0.5

log = logging.getLogger(__name__)


def dev(
    *,
    data_dir: Path | None,
    port: int,
    http_port: int | None,
    postgres_port: int | None,
    log_format: str | None,
    log_level: str | None,
    ready_file: Path | None = None,
    until_stdin_ends: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises `CommandFailed` or `InvalidInput` if that cannot be."""
    flags = {
        "node": "dev",
        "listen": f"{LOOPBACK}:{port}",
        "http_listen": None if http_port is None else f"{LOOPBACK}:{http_port}",
        "data_dir": data_dir,
        "log_format": log_format,
        "log_level": log_level,
    }
    defaults = {
        f"{PREFIX}DRAIN_GRACE": _DRAIN_GRACE,
        f"{PREFIX}LOG_FORMAT": "text" if sys.stderr.isatty() else "json",
        f"{PREFIX}LOG_LEVEL": "warning",
    }
    config = load_config(flags, {**defaults, **os.environ})
    configure_logging(config.log_format, config.log_level, node=config.node)
    # Before PostgreSQL is started for nothing.
    check_listen(config.listen, flag="--port")
    if config.http_listen != OFF:
        check_listen(config.http_listen, flag="--http-port")
    run_loop(_dev(config, postgres_port, ready_file, until_stdin_ends=until_stdin_ends))


async def _dev(
    config: NodeConfig, postgres_port: int | None, ready_file: Path | None, *, until_stdin_ends: bool
) -> None:
    server = EmbeddedPostgres(config.data_dir / "postgres")
    async with stop_signals() as asked:
        if until_stdin_ends:
            _set_at_end_of_stdin(asked)
        say(f"shardwheel {installed_version()}: starting PostgreSQL on {server.data_dir}")
        try:
            async with _postgres(server, postgres_port):
                await _serve(replace(config, database=server.dsn), server, asked, ready_file)
        except EmbeddedPostgresError as error:
            raise CommandFailed(str(error)) from error
    say("stopped; the next start goes on with the same data")


def _set_at_end_of_stdin(asked: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(asked.set)

    # A thread that may stay behind in its read must not hold up the end of the process.
    threading.Thread(target=read, name="stdin", daemon=True).start()


async def _serve(config: NodeConfig, server: EmbeddedPostgres, asked: asyncio.Event, ready_file: Path | None) -> None:
    def started(node: Node) -> None:
        say(next_steps(node.address, node.http.address, server))
        if ready_file is not None:
            _write_ready(ready_file, {"address": node.address, "http": node.http.address, "database": server.dsn})

    with explained(config):
        await unless_asked_to_stop(migrate(config.database), asked)
    if not asked.is_set():
        await run_node(config, asked, started=started)


def _write_ready(path: Path, addresses: dict[str, str]) -> None:
    """Write the file at one moment; it holds a password, so it is for this account alone."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(addresses, file)
    unfinished.replace(path)


@asynccontextmanager
async def _postgres(server: EmbeddedPostgres, port: int | None) -> AsyncIterator[None]:
    """PostgreSQL, started again if it dies and stopped in the end. Its methods block, so they run in threads."""
    try:
        await asyncio.to_thread(_start, server, port)
        watch = asyncio.create_task(_keep_running(server))
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
    finally:
        await asyncio.to_thread(server.stop, timeout_s=_POSTGRES_STOP_S)


def _start(server: EmbeddedPostgres, port: int | None) -> None:
    if port is not None:
        files = ServerFolder(server.data_dir)
        # While another process runs a server there, the port is not ours to change.
        files.take()
        try:
            files.remember_port(port)
        finally:
            files.release()
    server.start()
    # A remembered port that another program uses is replaced by a free one.
    if port is not None and server.port != port:
        raise CommandFailed(
            f"--postgres-port: cannot listen on {LOOPBACK}:{port}: the port is in use; stop the program that uses it, "
            "or give another port"
        )


async def _keep_running(server: EmbeddedPostgres) -> None:
    while True:
        await asyncio.sleep(_WATCH_S)
        if server.running:
            continue
        log.error("PostgreSQL has ended, starting it again", extra={"log_file": str(server.log_file)})
        try:
            await asyncio.to_thread(server.start)
        except EmbeddedPostgresError as error:
            log.error("PostgreSQL does not start", extra={"error": str(error)})
