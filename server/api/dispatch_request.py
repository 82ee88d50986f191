"""SetHandlerDispatch: checking the request, and the mode as a message."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from server.api.convert import span
from server.api.validation import Problems, check_handler, check_namespace
from server.domain.dispatch import MAX_QUEUE_TIMEOUT, MAX_UNFINISHED, MIN_QUEUE_TIMEOUT, DispatchMode, topic_fault
from shardwheel.v1 import admin_service_pb2 as pb

_MODES: Final = {pb.DISPATCH_STREAM: DispatchMode.STREAM, pb.DISPATCH_KAFKA: DispatchMode.KAFKA}
_MESSAGES: Final = {mode: number for number, mode in _MODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRequest:
    """A request that was found right; None leaves a setting as it is."""

    namespace: str
    handler: str
    mode: DispatchMode
    queue_timeout: timedelta | None
    max_unfinished: int | None

    @classmethod
    def of(cls, request: pb.SetHandlerDispatchRequest) -> Self:
        """Return what a request says; raises `InvalidRequest`."""
        problems = Problems()
        check_handler(problems, request.handler)
        namespace = check_namespace(problems, request.namespace)
        mode = _MODES.get(request.mode)
        if mode is None:
            problems.add("mode", request.mode, "has to be DISPATCH_STREAM or DISPATCH_KAFKA")
        elif mode is DispatchMode.KAFKA and request.handler and (fault := topic_fault(namespace, request.handler)):
            problems.add("handler", request.handler, fault)
        timeout = None
        if request.HasField("queue_timeout"):
            # Looked at in whole seconds first: a duration of years may be more than a timedelta holds.
            least, most = MIN_QUEUE_TIMEOUT.total_seconds(), MAX_QUEUE_TIMEOUT.total_seconds()
            seconds = request.queue_timeout.seconds
            if least <= seconds <= most and 0 <= request.queue_timeout.nanos < 1_000_000_000:
                timeout = span(request.queue_timeout)
            else:
                problems.add("queue_timeout", f"{seconds}s", "has to be from 1 s to 7 days")
        if not 0 <= request.max_unfinished <= MAX_UNFINISHED:
            reason = f"has to be from 1 to {MAX_UNFINISHED}, or 0 to leave it as it is"
            problems.add("max_unfinished", request.max_unfinished, reason)
        problems.check()
        return cls(
            namespace=namespace,
            handler=request.handler,
            mode=mode or DispatchMode.STREAM,
            queue_timeout=timeout,
            max_unfinished=request.max_unfinished or None,
        )


def dispatch_message(mode: DispatchMode) -> pb.DispatchMode.ValueType:
    """Return a mode as a message."""
    return _MESSAGES[mode]
