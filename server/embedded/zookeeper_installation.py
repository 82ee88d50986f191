"""The Java programs that an embedded ZooKeeper runs on."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.embedded.errors import ZookeeperMissing

#: Names HOST:PORT of a running server to use instead of an own one.
ADDRESS_VARIABLE: Final = "SHARDWHEEL_TEST_ZOOKEEPER"

_JARS: Final = Path("/usr/share/java")
_NEEDED: Final = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-log4j12.jar", "log4j-1.2.jar")
# Without these the server cannot speak TLS.
_NETTY: Final = ("all", "buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")
_LIBRARY: Final = "libzookeeper-java"
_RUNTIME: Final = "default-jre-headless"
_APT_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, kw_only=True)
class ZookeeperInstallation:
    """A Java runtime and the class path of ZooKeeper's server."""

    java: str
    class_path: str

    @classmethod
    def find(cls) -> "ZookeeperInstallation":
        """Return Debian's packages as they are installed here. Raises `ZookeeperMissing` with how to get them."""
        java, absent = _java(), [jar for jar in _NEEDED if not (_JARS / jar).exists()]
        if java is None or absent:
            lack = [
                *([] if java else ["there is no program java"]),
                *([f"{_JARS} lacks {absent[0]}"] if absent else []),
            ]
            raise ZookeeperMissing(
                f"no ZooKeeper here ({', '.join(lack)}): run `{' '.join(_command())}` as root, or name a running "
                f"server in {ADDRESS_VARIABLE}=HOST:PORT"
            )
        netty = [_JARS / f"netty-{part}.jar" for part in _NETTY]
        jars = [*(_JARS / jar for jar in _NEEDED), *(jar for jar in netty if jar.exists())]
        return cls(java=java, class_path=":".join(map(str, jars)))

    @classmethod
    def install(cls) -> "ZookeeperInstallation":
        """Return what `find` finds, after installing Debian's packages if need be and this process may.

        Raises `ZookeeperMissing`.
        """
        try:
            return cls.find()
        except ZookeeperMissing:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise
        with (Path(tempfile.gettempdir()) / "shardwheel-apt.lock").open("w") as lock:
            # Two at once would be in each other's way.
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return cls.find()
            except ZookeeperMissing:
                _run(["apt-get", "update"])
                _run(_command())
        return cls.find()


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")


def _command() -> list[str]:
    packages = [_LIBRARY] if _java() else [_LIBRARY, _RUNTIME]
    return ["apt-get", "install", "-y", "--no-install-recommends", *packages]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=_APT_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ZookeeperMissing(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode:
        raise ZookeeperMissing(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
