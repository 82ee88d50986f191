"""The status of a stream that has ended."""

import asyncio
import time

import grpc

# The text that grpc.aio gives for a write to a stream which the other side has ended.
_WRITE_FAILED = "Internal error from Core"
_PATIENCE_S = 1.0


async def status_of(call: grpc.aio.Call) -> grpc.aio.AioRpcError:
    """Return the status of a call that has ended, as an error, whatever its code."""
    return grpc.aio.AioRpcError(
        await call.code(), await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
    )


async def true_failure(call: grpc.aio.Call, failure: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """Return the status that the other side gave to a stream, given what a read or write has raised.

    A write that fails because the other side has ended the stream is reported by grpc.aio as an internal error; the
    true status replaces that on the call object a moment later.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while failure.code() is grpc.StatusCode.INTERNAL and failure.details() == _WRITE_FAILED:
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.01)
        failure = await status_of(call)
    return failure
