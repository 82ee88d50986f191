"""The public names: adding one is a decision, losing one breaks users."""

import inspect
import subprocess
import sys

import worker_sdk
from worker_sdk import AsyncClient, Client

PUBLIC = """
Aborted AlreadyExists ApiError AsyncClient AttemptOutcome BulkProgress BulkSubmitError CancelReason CancelSignal
Cancelled CatchUp Client Codec ConfigurationError Context DeadlineExceeded EnsuredSchedule ExecutionLog
FailedPrecondition Fold Gap Handler InvalidArgument Job JobAttempt JobError JobState JsonCodec Middleware NewJob
NewSchedule NonRetryable NotFound Overlap PayloadError PermissionDenied ResourceExhausted RetryAfter RetryPolicy
Schedule ScheduleChange SchedulePreview ServerError ShardwheelError Snooze Submitted Timeouts Tls Unauthenticated
Unavailable Unimplemented Violation WaitingReason Worker __version__
"""


def test_the_public_names_are_these() -> None:
    assert sorted(worker_sdk.__all__) == sorted(PUBLIC.split())
    assert all(hasattr(worker_sdk, name) for name in worker_sdk.__all__)


def test_public_classes_and_their_methods_say_what_they_are() -> None:
    for name in worker_sdk.__all__:
        value = getattr(worker_sdk, name)
        if inspect.isclass(value):
            assert value.__doc__, name
            for method, member in vars(value).items():
                if not method.startswith("_") and callable(member):
                    assert member.__doc__, f"{name}.{method}"


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    def arguments(client: type, name: str) -> list[str]:
        return list(inspect.signature(getattr(client, name)).parameters)

    names = {name for name, member in inspect.getmembers(AsyncClient, callable) if not name.startswith("_")}
    driven_by_the_other = {"bulk_upload", "bulk_spec", "sql_spec"}
    assert names - driven_by_the_other == {
        name for name, member in inspect.getmembers(Client, callable) if not name.startswith("_")
    } - {"start_submit"}
    for name in names - driven_by_the_other:
        assert arguments(AsyncClient, name) == arguments(Client, name), name


def test_the_package_needs_grpc_and_protobuf_only() -> None:
    """In a fresh interpreter, importing everything of the SDK brings in nothing else of ours and no third package.

    But for the two modules that a worker with the extra kafka loads when it starts.
    """
    program = """
import pkgutil, sys
import worker_sdk
for module in pkgutil.iter_modules(worker_sdk.__path__):
    if not module.name.startswith("__") and module.name not in ("kafka_reader", "kafka_intake"):
        __import__(f"worker_sdk.{module.name}")
tops = {name.partition(".")[0] for name in sys.modules}
print(*sorted(tops - set(sys.stdlib_module_names)))
"""
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    # grpc looks for its sisters by itself.
    found = {name for name in output if not name.startswith(("_", "grpc"))}
    assert found <= {"google", "shardwheel", "worker_sdk", "typing_extensions", "cython_runtime"}
