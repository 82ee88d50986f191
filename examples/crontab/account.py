"""The account that a command runs as: its name, home and groups, and how a process takes it on."""

import grp
import os
import pwd
from dataclasses import dataclass
from typing import TypedDict


class Switch(TypedDict, total=False):
    """Arguments of `subprocess` that change the account of the new process."""

    user: int
    group: int
    extra_groups: list[int]


class UnknownAccount(Exception):
    """There is no such account or group, or this process may not become it; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account of this machine; `groups` holds the primary one first."""

    name: str
    home: str
    user: int
    groups: tuple[int, ...]

    def switch(self) -> Switch:
        """Return what makes a new process run as this account, nothing if it does so anyway."""
        if self.user == os.geteuid() and self.groups[0] == os.getegid():
            return {}
        if os.geteuid() != 0:
            raise UnknownAccount(
                f"the worker runs as uid {os.geteuid()} and cannot become {self.name}; start it as root or as that user"
            )
        return {"user": self.user, "group": self.groups[0], "extra_groups": list(self.groups)}


def find_account(user: str | None) -> Account:
    """Return the account `name`, `name:group` or `name:group/class` (the class is not used), None: our own."""
    if user is None:
        return _own()
    name, _, group = user.partition("/")[0].partition(":")
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise UnknownAccount(f"there is no user {name!r} on this machine") from None
    try:
        primary = grp.getgrnam(group).gr_gid if group else entry.pw_gid
    except KeyError:
        raise UnknownAccount(f"there is no group {group!r} on this machine") from None
    others = [gid for gid in os.getgrouplist(name, primary) if gid != primary]
    return Account(name=name, home=entry.pw_dir, user=entry.pw_uid, groups=(primary, *others))


def _own() -> Account:
    user, group = os.geteuid(), os.getegid()
    try:
        entry = pwd.getpwuid(user)
    except KeyError:  # containers often run under a number that has no account
        return Account(name=str(user), home="/", user=user, groups=(group,))
    return Account(name=entry.pw_name, home=entry.pw_dir, user=user, groups=(group,))
