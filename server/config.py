"""Settings of a node: one frozen value, from flags and `SHARDWHEEL_*` variables."""

import difflib
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Final, get_type_hints

from server.domain.errors import InvalidInput
from server.engine.timings import EngineTimings

PREFIX: Final = "SHARDWHEEL_"
OFF: Final = "off"
"""Instead of the address of a port: do not listen."""
# Variables of clients, workers, the demo and tests, and those that Kubernetes makes for a service of this name.
_OTHERS: Final = re.compile(
    r"(ADDRESS|NAMESPACE|TOKEN|TOKEN_FILE|CA|CERT|KEY|EXECUTION_LOG|HEALTH_LISTEN|THOROUGH)$|(TEST|DEMO|BENCH|CHAOS)_"
    r"|PORT(_|$)|SERVICE_(HOST|PORT)"
)
# From this likeness on, a word is another one misspelled.
_SAME_WORD: Final = 0.85
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ENDPOINT: Final = re.compile(r"https?://[^\s/:]+:\d{1,5}/?|https?://\[[0-9A-Fa-f:.]+\]:\d{1,5}/?")
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Everything that a node needs to know at its start."""

    database: str = field(default="", repr=False)
    """Connection URI of PostgreSQL. Required."""
    node: str = field(default_factory=socket.gethostname)
    """Name of the node; two live nodes cannot have the same."""
    listen: str = "127.0.0.1:7400"
    """Address of the gRPC port."""
    advertise: str = ""
    """Address at which workers and other nodes reach this one; empty means `listen`."""
    http_listen: str = "127.0.0.1:7480"
    """Address of the HTTP port, for /healthz, /readyz and /metrics; "off" for none."""
    tls_cert: str = ""
    """File of the node's certificate, in PEM; switches TLS on, for both ports."""
    tls_key: str = ""
    """File of its key."""
    tls_client_ca: str = ""
    """File of the authorities of clients and workers, which have to show a certificate then."""
    tls_ca: str = ""
    """File of the authorities of the other nodes' certificates; empty means those of clients, else the system's."""
    insecure: bool = False
    """Listen beyond this machine without TLS: whoever can read the network reads tokens and jobs."""
    data_dir: Path = Path(".shardwheel")
    """Folder for what lets the node come back quickly after a crash; one node per folder."""
    coordinator: str = "postgres"
    """Who grants leases of shards: "postgres" or "zookeeper"; the same for all nodes."""
    zookeeper: str = ""
    """ZooKeeper's servers and path: `HOST:PORT,HOST:PORT/path`; the path is `/shardwheel` if it is left out."""
    zookeeper_auth: str = field(default="", repr=False)
    """`USER:PASSWORD` for ZooKeeper's digest scheme, the same for all nodes; only they have access then."""
    zookeeper_acl: str = ""
    """Who has access instead, as in `x509:CN=node-a;x509:CN=node-b`: all nodes, by their certificates."""
    zookeeper_ca: str = ""
    """File of the authorities that ZooKeeper's certificates come from; switches TLS on."""
    zookeeper_cert: str = ""
    """File of this node's certificate for ZooKeeper."""
    zookeeper_key: str = ""
    """File of its key."""
    session_ttl: timedelta = timedelta(seconds=10)
    """The node is dead to the others this long after its last sign of life."""
    drain_grace: timedelta = timedelta(seconds=10)
    """How long a stopping node waits for results under way."""
    heartbeat: timedelta = EngineTimings().heartbeat
    """A worker sends a heartbeat this often."""
    worker_lease: timedelta = EngineTimings().worker_lease
    """Silence of this length ends a worker's lease."""
    reset_grace: timedelta = EngineTimings().reset_grace
    """A worker whose stream was reset may take this long to come back."""
    kill_grace: timedelta = EngineTimings().kill_grace
    """An attempt that was told to stop may take this long before it is superseded."""
    sweep: timedelta = EngineTimings().sweep
    """Each owned partition is looked through this often."""
    kafka: str = ""
    """Kafka's brokers, `HOST:PORT,HOST:PORT`, for handlers whose jobs are published; empty for none."""
    kafka_config: str = ""
    """File with further settings of librdkafka, one `name=value` a line: for TLS, SASL and the like."""
    kafka_partitions: int = 12
    """Partitions of a topic that a node makes: so many consumers can share its jobs."""
    max_payload_bytes: int = 256 * 1024
    """Limit of a job's payload, 1 MiB at most."""
    max_result_bytes: int = 256 * 1024
    """Limit of a job's result, 1 MiB at most."""
    keep_completed: timedelta = timedelta(days=7)
    """Completed jobs are kept this long."""
    keep_unsuccessful: timedelta = timedelta(days=30)
    """Failed and cancelled jobs, and the attempts of all, are kept this long."""
    hot_connections: int = 8
    """Connections to PostgreSQL for claims, finishes and leases."""
    api_connections: int = 6
    """Connections to PostgreSQL for requests."""
    otlp_endpoint: str = ""
    """Where traces are sent by OTLP over gRPC, as in http://collector:4317; empty for nowhere."""
    log_format: str = "json"
    """"json" or "text"."""
    log_level: str = "info"
    """"debug", "info", "warning" or "error"."""

    def __post_init__(self) -> None:
        for name in ("max_payload_bytes", "max_result_bytes"):
            if not 1 <= getattr(self, name) <= 1 << 20:
                raise InvalidInput(name, getattr(self, name), "has to be from 1 to 1048576")
        for name in ("hot_connections", "api_connections"):
            if not 2 <= getattr(self, name) <= 200:
                raise InvalidInput(name, getattr(self, name), "has to be from 2 to 200")
        for name in ("keep_completed", "keep_unsuccessful"):
            if getattr(self, name) < timedelta(days=1):
                raise InvalidInput(name, getattr(self, name), "has to be at least one day")
        if self.coordinator not in ("postgres", "zookeeper"):
            raise InvalidInput("coordinator", self.coordinator, 'has to be "postgres" or "zookeeper"')
        if self.coordinator == "zookeeper" and not self.zookeeper:
            raise InvalidInput("zookeeper", "", "is required with the coordinator zookeeper, as in zk1:2181,zk2:2181")
        if self.log_format not in ("json", "text"):
            raise InvalidInput("log_format", self.log_format, 'has to be "json" or "text"')
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidInput("log_level", self.log_level, "has to be debug, info, warning or error")
        if self.otlp_endpoint and not _ENDPOINT.fullmatch(self.otlp_endpoint):
            raise InvalidInput("otlp_endpoint", self.otlp_endpoint, "has to be http://HOST:PORT or https://HOST:PORT")
        if self.session_ttl < timedelta(seconds=1):
            raise InvalidInput("session_ttl", self.session_ttl, "has to be at least 1s")
        if not timedelta(0) < self.drain_grace <= timedelta(hours=1):
            raise InvalidInput("drain_grace", self.drain_grace, "has to be longer than 0s and at most 1h")
        host = _checked_address("listen", self.listen)
        if self.advertise:
            _checked_address("advertise", self.advertise)
        if not self.advertise and host.strip("[]") in ("0.0.0.0", "::"):  # noqa: S104 - looked for, not bound
            reason = f"is required when listening on all addresses ({self.listen}): how do workers reach this node?"
            raise InvalidInput("advertise", self.advertise, reason)
        if self.http_listen != OFF:
            _checked_address("http_listen", self.http_listen, f'has to be HOST:PORT, or "{OFF}" for no HTTP port')
            if self.http_listen == self.listen and not self.listen.endswith(":0"):
                raise InvalidInput("http_listen", self.http_listen, "is the gRPC port already; give another port")
        if not 1 <= self.kafka_partitions <= 10_000:
            raise InvalidInput("kafka_partitions", self.kafka_partitions, "has to be from 1 to 10000")
        if self.kafka_config and not self.kafka:
            raise InvalidInput("kafka", "", "is required with kafka_config, as in kafka1:9092,kafka2:9092")
        for address in self.kafka.split(",") if self.kafka else ():
            _checked_address("kafka", address.strip(), "takes HOST:PORT,HOST:PORT")
        self._check_tls()
        self.timings()

    def _check_tls(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            name = "tls_key" if self.tls_cert else "tls_cert"
            raise InvalidInput(name, "", "is required: TLS takes a certificate and its key")
        for name in ("tls_client_ca", "tls_ca"):
            if getattr(self, name) and not self.tls_cert:
                raise InvalidInput(name, getattr(self, name), "needs tls_cert and tls_key")
        if self.tls_cert or self.insecure:
            return
        for name in ("listen", "http_listen"):
            address = getattr(self, name)
            if address != OFF and not is_loopback(address):
                reason = "is beyond this machine: give tls_cert and tls_key, or allow it without TLS by insecure"
                raise InvalidInput(name, address, reason)

    @property
    def beyond_loopback(self) -> bool:
        """Whether other machines may reach a port of the node."""
        return any(one != OFF and not is_loopback(one) for one in (self.listen, self.http_listen))

    def timings(self) -> EngineTimings:
        """Return the engine's times; raises `InvalidInput` if they cannot work together."""
        return EngineTimings(
            heartbeat=self.heartbeat,
            worker_lease=self.worker_lease,
            reset_grace=self.reset_grace,
            kill_grace=self.kill_grace,
            sweep=self.sweep,
        ).validated()


def _checked_address(field: str, address: str, reason: str = "has to be HOST:PORT") -> str:
    """Return the host of an address; raises `InvalidInput` with `reason`."""
    host, _, port = address.rpartition(":")
    if not host or any(character.isspace() for character in host) or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(field, address, reason)
    return host


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches HOST:PORT. A name other than "localhost" may lead anywhere."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_bool(text: str) -> bool:
    """Return what "true" or "false" says; raises ValueError."""
    if text.lower() not in _TRUTH:
        raise ValueError('takes "true" or "false"')
    return _TRUTH[text.lower()]


def parse_span(text: str) -> timedelta:
    """Return a duration such as "500ms", "15s" or "1h30m"; raises ValueError."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError('takes a duration such as "500ms", "15s" or "1h30m"')
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise ValueError("is longer than anybody can wait") from None


def load_config(
    flags: Mapping[str, object | None] | None = None, environment: Mapping[str, str] | None = None
) -> NodeConfig:
    """Return the settings: a flag that is given wins over its variable, which wins over the default.

    Raises `InvalidInput` that names the setting.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    kinds = get_type_hints(NodeConfig)
    for one in fields(NodeConfig):
        variable = PREFIX + one.name.upper()
        given = (flags or {}).get(one.name)
        if given is not None:
            values[one.name] = _parse(one.name, given, kinds[one.name])
        elif environment.get(variable):
            values[one.name] = _parse(variable, environment[variable], kinds[one.name])
    build: Callable[..., NodeConfig] = NodeConfig
    return build(**values)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the `SHARDWHEEL_*` variables that nothing of Shardwheel reads.

    Raises `InvalidInput` for one that is spelled almost as a setting: it was surely meant to be one.
    """
    settings = [one.name.upper() for one in fields(NodeConfig)]
    found = []
    for name in sorted(os.environ if environment is None else environment):
        rest = name.removeprefix(PREFIX)
        if rest == name or rest in settings or _OTHERS.match(rest):
            continue
        if near := difflib.get_close_matches(rest, settings, n=1, cutoff=_SAME_WORD):
            raise InvalidInput(name, "***", f"is no setting; was {PREFIX}{near[0]} meant?")
        found.append(name)
    return found


_PARSERS: Final[Mapping[type, Callable[[str], object]]] = {
    str: str,
    int: int,
    bool: parse_bool,
    Path: Path,
    timedelta: parse_span,
}


def _parse(name: str, value: object, kind: type) -> object:
    if isinstance(value, kind):
        return value
    try:
        return _PARSERS[kind](str(value))
    except ValueError as error:
        reason = "takes a whole number" if kind is int else str(error)
        raise InvalidInput(name, value, reason) from None
