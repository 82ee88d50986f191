"""Whose socket is it: from a connection's ports on the loopback interface to the name of the process that made it."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import orjson

_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_ESTABLISHED: Final = "01"

Ends = tuple[int, int]
"""The port that a connection comes from, and the one that it goes to."""


class SocketOwners:
    """Looks in /proc which of the processes that a journal tells of has a socket; any other is called `stranger`."""

    def __init__(self, journal: Path, stranger: str) -> None:
        self._journal = journal
        self._stranger = stranger
        self._read_to = 0
        self._pids: dict[str, int] = {}

    def names_of(self, ends: Collection[Ends]) -> dict[Ends, str]:
        """Return the names of the processes that have made connections; many at once cost hardly more than one."""
        inodes = _inodes(set(ends))
        self._read_on()
        names = {inode: name for name, pid in self._pids.items() for inode in _sockets_of(pid)}
        return {one: names.get(inodes.get(one, 0), self._stranger) for one in ends}

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


def _inodes(wanted: Collection[Ends]) -> dict[Ends, int]:
    """Return the numbers of connected sockets, be they of IPv4 or of IPv6 with an IPv4 address."""
    found: dict[Ends, int] = {}
    for table, prefix in (("/proc/net/tcp", ""), ("/proc/net/tcp6", "0000000000000000FFFF0000")):
        lines = {
            (f"{prefix}0100007F:{near:04X}", f"{prefix}0100007F:{far:04X}", _ESTABLISHED): (near, far)
            for near, far in wanted
        }
        with open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                ends = lines.get((fields[1], fields[2], fields[3]))
                if ends is not None:
                    found[ends] = int(fields[9])
    return found


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
