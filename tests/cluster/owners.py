"""Whose socket is it: from a connection's ports on the loopback interface to the name of the process that made it."""

import os
import re
from pathlib import Path
from typing import Final

import orjson

_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED: Final = "01"


class SocketOwners:
    """Looks in /proc which of the processes that a journal tells of has a socket; any other is called `stranger`."""

    def __init__(self, journal: Path, stranger: str) -> None:
        self._journal = journal
        self._stranger = stranger
        self._read_to = 0
        self._pids: dict[str, int] = {}

    def name_of(self, near: int, far: int) -> str:
        """Return the name of the process that has connected from port `near` to port `far`."""
        inode = _inode(near, far)
        if inode is not None:
            self._read_on()
            for name, pid in self._pids.items():
                if inode in _sockets_of(pid):
                    return name
        return self._stranger

    def _read_on(self) -> None:
        """Learn of processes that have been started since."""
        if not self._journal.exists():
            return
        with self._journal.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read_to += len(data)
        for raw in data.splitlines():
            line = orjson.loads(raw)
            if line["event"] == "started":
                self._pids[line["process"]] = line["pid"]


def _inode(near: int, far: int) -> int | None:
    """Return the number of a connected socket, whether it is one of IPv4 or one of IPv6 with an IPv4 address."""
    for table, prefix in (("/proc/net/tcp", ""), ("/proc/net/tcp6", "0000000000000000FFFF0000")):
        wanted = [f"{prefix}0100007F:{near:04X}", f"{prefix}0100007F:{far:04X}", _ESTABLISHED]
        with open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1:4] == wanted:
                    return int(fields[9])
    return None


def _sockets_of(pid: int) -> set[int]:
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        for number in os.listdir(folder):
            try:
                match = _SOCKET.fullmatch(os.readlink(f"{folder}/{number}"))
            except OSError:
                continue
            if match is not None:
                found.add(int(match[1]))
    except OSError:
        return set()
    return found
