"""The Java programs that an embedded ZooKeeper runs on."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.embedded.debian import InstallFailed, install, install_command, may_install
from server.embedded.errors import ZookeeperMissing

#: Names HOST:PORT of a running server to use instead of an own one.
ADDRESS_VARIABLE: Final = "SHARDWHEEL_TEST_ZOOKEEPER"

_JARS: Final = Path("/usr/share/java")
_NEEDED: Final = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-log4j12.jar", "log4j-1.2.jar")
# Without these the server cannot speak TLS.
_NETTY: Final = ("all", "buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")
_LIBRARY: Final = "libzookeeper-java"
_RUNTIME: Final = "default-jre-headless"


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
            command = " ".join(install_command(_packages()))
            raise ZookeeperMissing(
                f"no ZooKeeper here ({', '.join(lack)}): run `{command}` as root, or name a running server in "
                f"{ADDRESS_VARIABLE}=HOST:PORT"
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
            if not may_install():
                raise
        try:
            install(_packages(), cls._is_there)
        except InstallFailed as error:
            raise ZookeeperMissing(str(error)) from error
        return cls.find()

    @classmethod
    def _is_there(cls) -> bool:
        try:
            cls.find()
        except ZookeeperMissing:
            return False
        return True


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")


def _packages() -> list[str]:
    return [_LIBRARY] if _java() else [_LIBRARY, _RUNTIME]
