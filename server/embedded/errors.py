"""Errors of the embedded PostgreSQL server."""


class EmbeddedPostgresError(Exception):
    """The embedded server cannot be made, started or stopped; the text says why and what to do."""
