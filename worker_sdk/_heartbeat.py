"""A watchdog process that keeps a worker's lease while the worker's interpreter cannot.

Native code that holds the interpreter's lock stops every thread of a worker, the one that sends heartbeats too. This
program runs beside the worker, hears from it through a pipe on its standard input, and, when it hears nothing, renews
the lease with `WorkerService.KeepAlive`. It does so only while the worker exists and is not stopped (a stopped worker
has to lose its lease, so that its jobs run elsewhere), and at most for the time that it was told: a worker that never
comes back must not hold its jobs for ever. It ends when the pipe is closed or the worker has died.

It is started as a plain file, without the package around it, and imports grpc only when it is first needed: nearly
always it costs a sleeping interpreter. The protocol is one JSON object per line: `{}` is a sign of life, `Orders` as an
object tells what to do from now on.
"""

import base64
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field

METHOD = "/shardwheel.v1.WorkerService/KeepAlive"
# Longest time between two looks at whether the worker has died.
_LOOK_S = 0.5


@dataclass(slots=True)
class Orders:
    """What the worker wants."""

    interval_s: float
    """Renew this often; begin after one and a half times as long without a sign of life."""
    limit_s: float
    """Stop renewing after this long without a sign of life."""
    request: str
    """Serialized KeepAliveRequest, in base64."""
    addresses: list[str]
    """Nodes, in the order in which to try them."""
    metadata: list[list[str]] = field(default_factory=list)
    """Metadata of the call: pairs of key and value."""
    tls: bool = False
    """Whether nodes speak TLS."""
    ca: str | None = None
    """PEM of the authorities of the nodes; None: those of the system."""
    cert: str | None = None
    """PEM of the worker's certificate."""
    key: str | None = None
    """PEM of its key."""


def due(orders: Orders, *, now: float, heard_at: float, renewed_at: float) -> bool:
    """Return whether the lease should be renewed now. All times are monotonic seconds."""
    silence = now - heard_at
    return 1.5 * orders.interval_s <= silence <= orders.limit_s and now - renewed_at >= orders.interval_s


def runs(process: int) -> bool:
    """Return whether a process exists and is neither stopped, traced nor dead. False where there is no /proc."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            state = stat.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"R", b"S", b"D", b"I")


def watch(worker: int, pipe: int) -> None:
    """Watch the parent process `worker` until it dies or closes the pipe."""
    orders: Orders | None = None
    buffer = b""
    heard_at = renewed_at = time.monotonic()
    while True:
        readable, _, _ = select.select([pipe], [], [], min(_LOOK_S, orders.interval_s / 4) if orders else _LOOK_S)
        if os.getppid() != worker:
            return
        if readable:
            data = os.read(pipe, 1 << 16)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            heard_at = time.monotonic()
            for line in lines:
                message = json.loads(line)
                if message:
                    orders = Orders(**message)
        now = time.monotonic()
        if orders is not None and due(orders, now=now, heard_at=heard_at, renewed_at=renewed_at) and runs(worker):
            renewed_at = now
            renew(orders, worker)


def renew(orders: Orders, worker: int) -> bool:
    """Ask node after node to renew the lease; return whether one did."""
    import grpc

    request = base64.b64decode(orders.request)
    for address in orders.addresses:
        if os.getppid() != worker or not runs(worker):
            return False
        if orders.tls:
            pem = [None if text is None else text.encode() for text in (orders.ca, orders.key, orders.cert)]
            credentials = grpc.ssl_channel_credentials(*pem)
            channel = grpc.secure_channel(address, credentials)
        else:
            channel = grpc.insecure_channel(address)
        with channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
            try:
                metadata = tuple((key, value) for key, value in orders.metadata)
                call(request, timeout=orders.interval_s, metadata=metadata)
            except grpc.RpcError:
                continue
            return True
    return False


if __name__ == "__main__":
    # A terminal's Ctrl-C or a service manager's SIGTERM reaches the whole group; the worker decides when to end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(int(sys.argv[1]), sys.stdin.fileno())
