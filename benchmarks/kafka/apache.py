"""One broker of Apache Kafka, which keeps its topics over a kill; its jars come from Maven."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from server.embedded.port import LOOPBACK, choose_port
from server.embedded.watchdog import Watchdog

JARS_VARIABLE: Final = "SHARDWHEEL_TEST_KAFKA_JARS"
"""Folder with the jars, where Maven's registry cannot be reached."""
_CLUSTER_ID: Final = "c2hhcmR3aGVlbC10ZXN0cw"
_POM: Final = Path(__file__).with_name("pom.xml")
_START_S: Final = 60.0


class KafkaMissing(Exception):
    """There is no Apache Kafka here, and none can be had; the text says what to do."""


def jars() -> Path:
    """Return the folder of the jars, fetched by Maven if need be; raises `KafkaMissing`."""
    given = os.environ.get(JARS_VARIABLE)
    if given:
        return Path(given)
    folder = Path(sys.prefix) / "kafka-jars"
    if any(folder.glob("kafka_*.jar")):
        return folder
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise KafkaMissing(f"Apache Kafka needs Java, and Maven to fetch it, or its jars in the folder {JARS_VARIABLE}")
    command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    fetched = subprocess.run(
        [*command, "-DincludeScope=runtime"], capture_output=True, text=True, timeout=600, check=False
    )
    if fetched.returncode:
        raise KafkaMissing(f"Maven cannot fetch Apache Kafka: {fetched.stdout[-500:]}")
    return folder


class ApacheKafka:
    """Starts with the `with` statement, in a folder of its own; may be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jars = jars()
        self.address = f"{LOOPBACK}:{choose_port(random.Random())}"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(self._properties())
        self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._settings)).wait(_START_S)
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and return when clients are answered."""
        self._process = self._java("kafka.Kafka", str(self._settings))
        self._watchdog = Watchdog(self._process.pid, names=("java",), hard=signal.SIGKILL)
        deadline = time.monotonic() + _START_S
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            try:
                client.list_topics(timeout=1)
                return
            except KafkaException:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill -9."""
        process, self._process = self._process, None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if process is not None:
            process.kill()
            process.wait()

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    def _java(self, main: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = ["java", "-Xmx512m", "-cp", f"{self._jars}/*", main, *arguments]
        with (self._folder / "output.log").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self._folder)

    def _properties(self) -> str:
        controller = f"{LOOPBACK}:{choose_port(random.Random())}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            "default.replication.factor": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())
