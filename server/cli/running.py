"""Runs a node in this process until it is told to stop."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar

from server.app import LoopEnded, Node
from server.cli.failure import CommandFailed, InputRefused, one_line, setting
from server.config import OFF, NodeConfig
from server.store.coordination import OtherCoordinator
from server.store.errors import AccessDenied, StoreError, Unavailable
from shard_manager.errors import CoordinatorError, DataDirInUse, InvalidSetting, NodeNameTaken, ShardCountMismatch

T = TypeVar("T")

# Python's own 700 allocations are less than one batch of jobs: a collection in the middle of each would cost more than
# it frees, for almost nothing of a node's is cyclic.
_GC_THRESHOLDS: Final = (50_000, 20, 50)


def run_loop(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine in the fastest event loop there is."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


@asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """Yield an event that SIGTERM or SIGINT sets; a second signal ends the process at once."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        yield asked
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def unless_asked_to_stop(work: Coroutine[object, object, T], asked: asyncio.Event) -> T | None:
    """Return what `work` returns, or break it off and return None if `asked` is set first."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(asked.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


async def run_node(config: NodeConfig, asked: asyncio.Event, *, started: Callable[[Node], None]) -> None:
    """Serve until `asked` is set, then stop without losing anything. Raises `CommandFailed` if it cannot start."""
    with explained(config):
        check_listen(config.listen)
        if config.http_listen != OFF:
            check_listen(config.http_listen, flag=setting("http_listen"))
        node = Node(config)
        await unless_asked_to_stop(node.start(), asked)
    if asked.is_set():
        # Nothing was promised to anybody yet, and the end of the process closes what was opened.
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    started(node)
    with explained(config):
        try:
            await unless_asked_to_stop(node.until_broken(), asked)
        finally:
            await node.stop()


@contextmanager
def explained(config: NodeConfig) -> Iterator[None]:
    """Turn what can go wrong at a start into `CommandFailed` with words for people."""
    try:
        yield
    except AccessDenied as error:
        raise CommandFailed(
            f"{setting('database')}: {one_line(error, secret=config.database)}; correct the URI, or the server's rules"
        ) from error
    except Unavailable as error:
        raise CommandFailed(
            f"{setting('database')}: {one_line(error, secret=config.database)}; start PostgreSQL or correct the URI"
        ) from error
    except StoreError as error:
        # A schema that does not fit, or an answer that nobody expects.
        raise CommandFailed(f"{setting('database')}: {one_line(error, secret=config.database)}") from error
    except InvalidSetting as error:
        raise InputRefused(f"{setting(error.field)}: {error.remedy} (got '{error.value}')") from error
    except OtherCoordinator as error:
        raise CommandFailed(f"{setting('coordinator')}: {one_line(error)}") from error
    except NodeNameTaken as error:
        raise CommandFailed(f"{setting('node')}: {one_line(error)}") from error
    except (CoordinatorError, ShardCountMismatch) as error:
        name = "zookeeper" if config.coordinator == "zookeeper" else "database"
        raise CommandFailed(f"{setting(name)}: {one_line(error)}") from error
    except LoopEnded as error:
        raise CommandFailed(f"{error}; the log says why; start the node again") from error
    except DataDirInUse as error:
        raise CommandFailed(f"{setting('data_dir')}: {one_line(error)}") from error
    except OSError as error:
        raise CommandFailed(
            f"{setting('data_dir')}: {config.data_dir} cannot be used: {one_line(error)}; name a folder that can be "
            "written to"
        ) from error
    except RuntimeError as error:
        # What gRPC says when the port was taken after the look at it.
        if "bind" not in str(error):
            raise
        raise _taken(config.listen) from error


def check_listen(listen: str, *, flag: str = "") -> None:
    """Raise `CommandFailed` if nobody could listen there; `flag` names the setting, `listen` by default.

    gRPC itself would share the port with another node, and clients would reach either of them by chance.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputRefused(
            f"{flag or setting('listen')}: {host!r} is not an address of this machine: {error}"
        ) from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            # Connections of an earlier run in TIME_WAIT are no obstacle, listeners are.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise _taken(listen, flag, error) from error


def _taken(listen: str, flag: str = "", error: OSError | None = None) -> CommandFailed:
    reason = "address already in use" if error is None else one_line(error.strerror).lower()
    return CommandFailed(
        f"{flag or setting('listen')}: cannot listen on {listen}: {reason}; stop the program that uses "
        "the port, or give another one"
    )


def say(text: str) -> None:
    """Print to stdout at once, for whoever waits for the line."""
    print(text, file=sys.stdout, flush=True)
