"""The choice of a TCP port that stays the same over restarts."""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

_FIRST_PORT = 15_000
_ATTEMPTS = 200
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_FIRST_EPHEMERAL = 32_768


def is_free(port: int) -> bool:
    """Say whether a server could listen on the loopback port right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As PostgreSQL does: connections of the last run in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def choose_port(draw: random.Random) -> int:
    """Return a free loopback port that the kernel does not give to outgoing connections.

    While the server is down, an outgoing connection could otherwise take its port, or a client that keeps trying could
    even connect to itself.
    """
    last = _first_ephemeral_port() - 1
    for _ in range(_ATTEMPTS if last > _FIRST_PORT else 0):
        port = draw.randint(_FIRST_PORT, last)
        if is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def _first_ephemeral_port() -> int:
    try:
        return int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _DEFAULT_FIRST_EPHEMERAL
