"""Where a cluster's PostgreSQL is: one server or a pair, on a clock and a disk of their own or on the machine's."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.support import postgres_disk
from tests.support.postgres import PostgresServer
from tests.support.postgres_clock import MovableClock
from tests.support.postgres_disk import Balloon, small_disk
from tests.support.postgres_pair import PostgresPair
from tests.support.scratch import make_folder

# So few that a test can take them all in a second.
SETTINGS: Final[Mapping[str, str]] = {"max_connections": "70"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSite:
    """What there is of it; faults need one part or the other."""

    servers: PostgresPair | PostgresServer
    clock: MovableClock | None = None
    balloon: Balloon | None = None

    @classmethod
    def of(cls, server: "PostgresServer | PostgresSite") -> Self:
        """Return a site, or make one of a single server."""
        if isinstance(server, PostgresServer):
            return cls(servers=server)
        return cls(servers=server.servers, clock=server.clock, balloon=server.balloon)

    @property
    def pair(self) -> PostgresPair | None:
        """The two servers, if there are two."""
        return self.servers if isinstance(self.servers, PostgresPair) else None

    @property
    def server(self) -> PostgresServer:
        """The server that clients write to."""
        return self.servers.primary if isinstance(self.servers, PostgresPair) else self.servers

    @property
    def ports(self) -> list[int]:
        """The ports of all servers, in the order of their names in `dsn`."""
        pair = self.pair
        standby = pair.standby if pair is not None else None
        return sorted([self.server.port, *([standby.port] if standby else [])])

    @property
    def logs(self) -> list[Path]:
        """The log files of all servers."""
        standby = self.pair.standby if self.pair is not None else None
        return [self.server.log_file, *([standby.log_file] if standby else [])]

    def dsn(self, database: str) -> str:
        """Return the connection URI of a database, the same over failovers."""
        return self.servers.dsn(database)

    def start(self) -> None:
        """Start what is down. It keeps its ports."""
        pair = self.pair
        for server in (self.server, pair.standby if pair is not None else None):
            if server is not None and not server.running:
                before = server.port
                server.start()
                assert server.port == before, "another program has taken PostgreSQL's port meanwhile"


@contextlib.contextmanager
def equipped_site(*, standby: bool = False, clock: bool = False, disk_mb: int = 0) -> Iterator[PostgresSite]:
    """Start PostgreSQL with what is asked for; all is gone afterwards.

    Raises LookupError or PermissionError, with a text for people, if this machine cannot have it.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardwheel-test-site-")))
        folder.chmod(0o755)
        movable = MovableClock(folder) if clock else None
        installation = movable.installation() if movable else None
        settings, balloon = dict(SETTINGS), None
        places = None
        if disk_mb:
            disk = stack.enter_context(small_disk(disk_mb))
            places, balloon = (_folder(disk, "one"), _folder(disk, "two")), Balloon(disk)
            settings |= postgres_disk.SETTINGS
        elif standby:
            places = (make_folder("shardwheel-test-pg-"), make_folder("shardwheel-test-pg-"))
        servers: PostgresPair | PostgresServer
        if standby:
            servers = stack.enter_context(PostgresPair(installation=installation, settings=settings, folders=places))
        else:
            own = places[0] if places else None
            servers = stack.enter_context(PostgresServer(installation=installation, settings=settings, folder=own))
        yield PostgresSite(servers=servers, clock=movable, balloon=balloon)


def _folder(disk: Path, name: str) -> Path:
    folder = disk / name
    folder.mkdir(mode=0o755)
    return folder
