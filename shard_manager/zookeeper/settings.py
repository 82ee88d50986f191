"""Where the ensemble is, and how this node proves who it is."""

import re
from dataclasses import dataclass, field
from typing import Final

from shard_manager.errors import InvalidSetting

DEFAULT_CHROOT: Final = "/shardwheel"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperSettings:
    """How to reach an ensemble. Raises `InvalidSetting`.

    `hosts` are HOST:PORT of all servers; `chroot` is the path under which everything of one cluster lives, made if it
    is missing. `auth` is "USER:PASSWORD" of the digest scheme, which sends the password in the clear, so it belongs
    on TLS; empty: none. `acl` are identities "SCHEME:ID", such as "x509:CN=node-a", that may do everything with what
    this node creates; by default the one of `auth`, else everybody. All nodes of a cluster need the same.
    With `use_ssl`, `ca` names a file of trusted authorities and `certfile` and `keyfile` this node's own certificate;
    host names are checked.
    """

    hosts: tuple[str, ...]
    chroot: str = DEFAULT_CHROOT
    auth: str = field(default="", repr=False)
    acl: tuple[str, ...] = ()
    use_ssl: bool = False
    ca: str = ""
    certfile: str = ""
    keyfile: str = ""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InvalidSetting("zookeeper", "", "at least one HOST:PORT is needed")
        for host in self.hosts:
            match = _HOST.fullmatch(host)
            if match is None or not 1 <= int(match[2]) <= _MAX_PORT:
                raise InvalidSetting("zookeeper", host, "must be HOST:PORT, or several with commas between")
        segments = self.chroot.split("/")
        if segments[0] or len(segments) < 2 or not all(map(_SEGMENT.fullmatch, segments[1:])):
            raise InvalidSetting(
                "zookeeper", self.chroot, "the path after the servers must look like /shardwheel or /a/b"
            )
        if self.auth and not all(self.auth.partition(":")[::2]):
            raise InvalidSetting("zookeeper_auth", "***", "must be USER:PASSWORD")
        for identity in self.acl:
            if not all(identity.partition(":")[::2]):
                raise InvalidSetting("zookeeper_acl", identity, "must be SCHEME:ID, as in x509:CN=node-a")
        if bool(self.certfile) != bool(self.keyfile):
            raise InvalidSetting("zookeeper_cert", self.certfile, "a certificate and its key are needed together")
        if not self.use_ssl and (self.ca or self.certfile):
            raise InvalidSetting("zookeeper_tls", False, "must be on for certificates to be used")

    @staticmethod
    def split(text: str) -> tuple[tuple[str, ...], str]:
        """Split "HOST:PORT,HOST:PORT/chroot" into servers and chroot; without one, it is `DEFAULT_CHROOT`."""
        servers, slash, chroot = text.strip().partition("/")
        hosts = tuple(host.strip() for host in servers.split(",") if host.strip())
        return hosts, (slash + chroot).rstrip("/") or DEFAULT_CHROOT
