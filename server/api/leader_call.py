"""Carries out an order here if this node leads, else at the leader: one hop, never two.

While leadership changes hands, or the leader does not answer, the order is tried again for a while: every order may be
repeated, and one leader answers all tries of an order alike. The deadline of the call is kept all the way.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from server.api.errors import NotLeading, Relayed
from server.api.order_memory import OrderMemory
from server.api.ports import ClusterView
from server.peers.channels import PeerChannels, UnknownPeer
from shardwheel.v1.admin_service_pb2_grpc import AdminServiceStub

# Names the node that forwarded a call, which is not forwarded again.
FORWARDED_BY: Final = "shardwheel-forwarded-by"
# Tells the tries of one order from those of others.
ORDER_NUMBER: Final = "shardwheel-order-number"
# The leader trusts the node that forwards a call: it has let the caller in. So nobody's token travels any further.
_PASSED_ON: Final = ("traceparent",)

# Of a call without a deadline.
DEFAULT_S: Final = 10.0
# How long an order waits for somebody to lead, or for the leader to be reached.
PATIENCE_S: Final = 5.0
PAUSE_S: Final = 0.1
# Of one attempt: a leader that hangs is replaced within the patience, if its session is short.
ATTEMPT_S: Final = 3.0
# Of an order that is being carried out, whether or not somebody still waits for it.
_LIMIT_S: Final = 60.0
# Left for the answer to travel, so that the caller learns the reason and not only that its time is over.
_SLACK_S: Final = 0.2

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Method: TypeAlias = "Callable[[AdminServiceStub], grpc.aio.UnaryUnaryMultiCallable[Request, Response]]"


class LeaderCall:
    """Finds the leader for each order that comes to `node`."""

    def __init__(self, node: str, cluster: ClusterView, peers: PeerChannels) -> None:
        self._node = node
        self._cluster = cluster
        self._peers = peers
        self._memory = OrderMemory(_LIMIT_S)

    @property
    def leader(self) -> str:
        """The leader as this node sees it, empty if it knows of none."""
        return self._cluster.leader()

    async def run(
        self,
        method: "Method[Request, Response]",
        request: Request,
        context: Context,
        local: Callable[[], Awaitable[Response]],
        *,
        deposed: str = "",
    ) -> Response:
        """Answer `request` by `local` on the leader, or with what the leader's `method` answers.

        A node `deposed` leads no more, though this node may not have learnt of it yet.
        Raises `NotLeading`, `Relayed`, or what `local` raises.
        """
        # None for a call without a deadline, whatever the stubs of grpc say.
        given_s = cast("float | None", context.time_remaining())
        end_s = time.monotonic() + (DEFAULT_S if given_s is None else max(given_s - _SLACK_S, 0.05))
        patient_until_s = min(end_s, time.monotonic() + PATIENCE_S)
        metadata = [(str(key), value) for key, value in context.invocation_metadata() or ()]
        forwarded = any(key == FORWARDED_BY for key, _ in metadata)
        number = next((str(value) for key, value in metadata if key == ORDER_NUMBER), secrets.token_hex(8))
        passed_on = [(key, str(value)) for key, value in metadata if key in _PASSED_ON]
        passed_on.append((ORDER_NUMBER, number))
        while True:
            try:
                leader = self._cluster.leader()
                leader = "" if leader == deposed else leader
                if leader == self._node:
                    return await _within(end_s, self._memory.once(number, local))
                if forwarded or not leader:
                    raise self._nobody(leader)
                return await self._at(leader, method, request, end_s, passed_on)
            except NotLeading as error:
                if forwarded or time.monotonic() + PAUSE_S >= patient_until_s:
                    raise
                reason = error.reason
            await asyncio.sleep(PAUSE_S if reason != "NOT_LEADER" else PAUSE_S / 5)

    def _nobody(self, leader: str) -> NotLeading:
        if leader:
            return NotLeading("NOT_LEADER", f"node {self._node!r} does not lead; the leader is {leader!r}")
        trouble = self._cluster.trouble()
        return NotLeading(
            "NO_LEADER",
            f"node {self._node!r} knows of no leader at this moment, so nothing was changed"
            + (f" ({trouble})" if trouble else ""),
        )

    async def _at(
        self,
        leader: str,
        method: "Method[Request, Response]",
        request: Request,
        end_s: float,
        metadata: list[tuple[str, str]],
    ) -> Response:
        try:
            return await self._peers.call(
                leader,
                AdminServiceStub,
                method,
                request,
                timeout_s=min(max(end_s - time.monotonic(), 0.01), ATTEMPT_S),
                metadata=[*metadata, (FORWARDED_BY, self._node)],
            )
        except UnknownPeer as error:
            raise _unreachable(leader, str(error)) from error
        except grpc.aio.AioRpcError as error:
            status = _status_of(error)
            reason = _reason(status)
            if error.code() is grpc.StatusCode.UNAVAILABLE and reason in ("", "NOT_LEADER", "NO_LEADER"):
                if reason:
                    raise NotLeading(reason, status.message) from error
                raise _unreachable(leader, error.details() or "no connection") from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise _unreachable(leader, "no answer in time") from error
            raise Relayed(status) from error


async def _within(end_s: float, work: Awaitable[Response]) -> Response:
    try:
        async with asyncio.timeout(end_s - time.monotonic()):
            return await work
    except TimeoutError:
        raise NotLeading(
            "COORDINATOR_UNAVAILABLE",
            "the coordinator has not answered in time; the order may or may not be carried out, and may be repeated",
        ) from None


def _unreachable(leader: str, why: str) -> NotLeading:
    return NotLeading(
        "LEADER_UNREACHABLE", f"the leader {leader!r} cannot be reached ({why}); the order may be repeated"
    )  # fmt: skip


def _status_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The whole status of an answer; one without details is made of its code and text."""
    found = rpc_status.from_call(cast("grpc.Call", error))
    if found is not None:
        return found
    code: int = error.code().value[0]
    return status_pb2.Status(code=code, message=error.details() or error.code().name)


def _reason(status: status_pb2.Status) -> str:
    """The reason that a node of ours gave; empty if the answer is not from one."""
    for packed in status.details:
        info = error_details_pb2.ErrorInfo()
        if packed.Is(info.DESCRIPTOR) and packed.Unpack(info):
            return str(info.reason)
    return ""
