"""A process group: the processes that a command has started and that share the signals sent to it."""

import os
from pathlib import Path


class ProcessGroup:
    """The group led by the process `leader`, which need not live any more."""

    def __init__(self, leader: int) -> None:
        self.leader = leader

    def signal(self, number: int) -> bool:
        """Send a signal to all members; tell whether there are any, dead ones that nobody has collected included."""
        try:
            os.killpg(self.leader, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # its members have taken on another account; there is no more that can be done
        return True

    def is_alive(self) -> bool:
        """Whether a member still runs.

        A container often has no init that collects orphans, so dead members may stay for ever: they do not count,
        where /proc tells them apart.
        """
        if not self.signal(0):
            return False
        members = [state for group, state in _processes() if group == self.leader]
        return not members or any(state not in "ZX" for state in members)


def _processes() -> list[tuple[int, str]]:
    """The process group and the state letter of every process, by /proc/PID/stat (see proc_pid_stat(5))."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = stat.read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        found.append((int(group), state))
    return found
