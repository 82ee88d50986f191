"""Write handlers, run them in workers, submit jobs: the client side of Shardwheel.

The model
    A *job* is a unit of work to run once: a handler's name, a payload, a due time, policies. A *handler* is a function
    that executes jobs; a *worker* is a process that holds handlers and a session to every node of the cluster. Nodes
    hand due jobs to workers, never more at a time than the handler's `max_concurrency`, and store what becomes of them.
    One execution is an *attempt*. A *schedule* makes one job per firing.

Guarantees
    - A job whose submit was answered runs at least once, or ends visibly: failed, cancelled, out of time.
    - It has at most one attempt whose outcome counts. An attempt that has lost its place (its worker fell silent, it
      ran out of time) is told to stop, and whatever it reports is dropped.
    - An outcome is kept and sent again, on any session, until a node has acknowledged it.
    - A handler that blocks, async or sync, delays no other handler of the worker, and not its heartbeats. If native
      code holds the interpreter's lock, a small watchdog process keeps the worker's lease for up to 5 minutes (Linux).
    - A worker that is told to stop (SIGTERM) finishes what it can within its grace, gives back the rest without
      burning a try, and sends heartbeats until it says goodbye.
    - `Context.complete_in` commits a handler's own PostgreSQL effect and the job's completion together, or neither.

Not guaranteed
    - Side effects are not exactly-once: a worker may die after an effect and before its report, and the job runs again.
      Use `Context.idempotency_key`, the same for all attempts of a job, and `Context.claim`, which grows with each.
    - A thread cannot be stopped from outside. A sync handler that ignores `Context.cancelled` runs on after a cancel or
      a timeout, possibly beside the next attempt (which starts after the server's `kill_grace`).
    - Jobs are not ordered, except by priority and due time among those that wait.
    - Progress is sent with heartbeats; what was reported since the last one is lost if the process is killed.

The entry points are `Worker`, `Client` and `AsyncClient`; `worker_sdk.testing` runs a handler without a server, and
`python -m worker_sdk module:worker` runs a worker. Logs go to the standard logger "worker_sdk". The package needs
grpcio, protobuf and the generated messages, and nothing of the server.
"""

from worker_sdk.async_client import AsyncClient
from worker_sdk.cancel_signal import CancelSignal
from worker_sdk.client import Client
from worker_sdk.codec import Codec, JsonCodec
from worker_sdk.context import Context
from worker_sdk.errors import (
    Aborted,
    AlreadyExists,
    ApiError,
    BulkSubmitError,
    ConfigurationError,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PayloadError,
    PermissionDenied,
    ResourceExhausted,
    ServerError,
    ShardwheelError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Violation,
)
from worker_sdk.execution_log import ExecutionLog
from worker_sdk.handler import Handler
from worker_sdk.jobs import (
    AttemptOutcome,
    BulkProgress,
    Job,
    JobAttempt,
    JobError,
    JobState,
    NewJob,
    Submitted,
    WaitingReason,
)
from worker_sdk.middleware import Middleware
from worker_sdk.outcomes import Cancelled, CancelReason, NonRetryable, RetryAfter, Snooze
from worker_sdk.policies import RetryPolicy, Timeouts
from worker_sdk.schedules import (
    CatchUp,
    EnsuredSchedule,
    Fold,
    Gap,
    NewSchedule,
    Overlap,
    Schedule,
    ScheduleChange,
    SchedulePreview,
)
from worker_sdk.tls import Tls
from worker_sdk.version import __version__
from worker_sdk.worker import Worker

__all__ = [
    "Aborted",
    "AlreadyExists",
    "ApiError",
    "AsyncClient",
    "AttemptOutcome",
    "BulkProgress",
    "BulkSubmitError",
    "CancelReason",
    "CancelSignal",
    "Cancelled",
    "CatchUp",
    "Client",
    "Codec",
    "ConfigurationError",
    "Context",
    "DeadlineExceeded",
    "EnsuredSchedule",
    "ExecutionLog",
    "FailedPrecondition",
    "Fold",
    "Gap",
    "Handler",
    "InvalidArgument",
    "Job",
    "JobAttempt",
    "JobError",
    "JobState",
    "JsonCodec",
    "Middleware",
    "NewJob",
    "NewSchedule",
    "NonRetryable",
    "NotFound",
    "Overlap",
    "PayloadError",
    "PermissionDenied",
    "ResourceExhausted",
    "RetryAfter",
    "RetryPolicy",
    "Schedule",
    "ScheduleChange",
    "SchedulePreview",
    "ServerError",
    "ShardwheelError",
    "Snooze",
    "Submitted",
    "Timeouts",
    "Tls",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Violation",
    "WaitingReason",
    "Worker",
    "__version__",
]
