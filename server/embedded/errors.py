"""Errors of the embedded servers."""


class EmbeddedPostgresError(Exception):
    """The embedded server cannot be made, started or stopped; the text says why and what to do."""


class EmbeddedZookeeperError(Exception):
    """The embedded ZooKeeper cannot be started; the text says why and what to do."""


class ZookeeperMissing(EmbeddedZookeeperError):
    """This machine has no ZooKeeper to run; the text says how to get one."""
