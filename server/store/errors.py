"""What can go wrong with a statement, in the three classes that callers have to tell apart.

StoreError
├── NotApplied       surely not committed: say so, or try again
│   ├── Unavailable      the database is away or overloaded
│   │   ├── Locked           others held a lock for too long
│   │   └── AccessDenied     it answers, and does not let this client in
│   └── Refused          the database refused the statement itself
├── UnknownOutcome   the commit may or may not have happened: read back before acting
└── SchemaMismatch   the schema is not one that this version can work with
"""


class StoreError(Exception):
    """Base of everything the store raises."""


class NotApplied(StoreError):
    """The statement surely had no effect."""


class Unavailable(NotApplied):
    """The database could not be reached, or had no room for the statement within its deadline."""


class Locked(Unavailable):
    """Somebody held a lock that the statement needed for longer than it may wait."""


class AccessDenied(Unavailable):
    """The server answers and does not let this client in: password, role, database, TLS. Trying again does not help."""


class Refused(NotApplied):
    """The database refused the statement; `sqlstate` says why."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{message} (SQLSTATE {sqlstate})")
        self.sqlstate = sqlstate


class UnknownOutcome(StoreError):
    """The connection broke while the statement was under way: it may have been committed."""


class SchemaMismatch(StoreError):
    """The database's schema cannot be served by this version; the message says what to do."""
