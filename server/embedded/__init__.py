"""A private PostgreSQL server in a folder, and a private ZooKeeper: for `shardwheel dev`, the demo and the tests.

`EmbeddedPostgres` makes the data on its first start and starts again on the same data afterwards, also when everything
was killed at any instant: commits are kept, remains of the earlier run are ended or removed first. The server listens
on the loopback address only, with a random password, and ends when the process that started it ends, however that
happens. It runs under an ordinary account even if its parent is root, as PostgreSQL insists.

Not promised: upgrades of the data to another major version of PostgreSQL, and use by two processes at once (the second
is refused). For production, run PostgreSQL with replicas and backups instead.

`EmbeddedZookeeper` runs the ZooKeeper of Debian's packages, if they are installed.
"""

from server.embedded.errors import EmbeddedPostgresError, EmbeddedZookeeperError, ZookeeperMissing
from server.embedded.installation import PostgresInstallation
from server.embedded.postgres import EmbeddedPostgres, StopMode
from server.embedded.zookeeper import EmbeddedZookeeper

__all__ = [
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "EmbeddedZookeeper",
    "EmbeddedZookeeperError",
    "PostgresInstallation",
    "StopMode",
    "ZookeeperMissing",
]
