"""The certificate of a node, its key, and the authorities that it trusts, read again when the files change."""

import logging
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from server.domain.errors import InvalidInput

log = logging.getLogger(__name__)

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. The fields are called as the settings of the node."""

    tls_cert: Path
    """Certificate of the node, with those between it and its authority."""
    tls_key: Path
    """Its key."""
    tls_client_ca: Path | None = None
    """Authorities of clients and workers, which need a certificate then."""
    tls_ca: Path | None = None
    """Authorities of the other nodes' certificates; those of clients, else the system's, if it is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    cert: bytes
    key: bytes
    client_ca: bytes | None
    ca: bytes | None


class Certificates:
    """What TLS needs, as it is in the files. `look` every few seconds; new connections take what it finds.

    Raises `InvalidInput` that names the setting of a file that cannot be used. Afterwards, files that cannot be used
    are logged, and the earlier ones stay in force: whoever replaces them may be half done.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamp = self._stamps()
        self._read = self._checked()
        self._broken = ""
        self._server = self._configuration()
        self._channel = self._channel_credentials()
        self.https = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """For the HTTP port, which asks nobody for a certificate: probes and browsers have none."""
        self.https.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_https()

    @property
    def server_credentials(self) -> grpc.ServerCredentials:
        """For the gRPC port; each new connection takes what is in force."""
        return grpc.dynamic_ssl_server_credentials(
            self._server, lambda: self._server, require_client_authentication=self._read.client_ca is not None
        )

    @property
    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For channels to other nodes; another object once the files have changed."""
        return self._channel

    def look(self) -> bool:
        """Take in files that have changed; return whether that happened."""
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        try:
            self._read = self._checked()
        except InvalidInput as error:
            if str(error) != self._broken:
                log.error("new certificates cannot be used, the earlier ones stay", extra={"error": str(error)})
            self._broken = str(error)
            return False
        self._stamp, self._broken = stamp, ""
        self._server = self._configuration()
        self._channel = self._channel_credentials()
        self._load_https()
        log.info("new certificates taken in", extra={"file": str(self._files.tls_cert)})
        return True

    def _stamps(self) -> Mapping[str, tuple[int, int, int] | None]:
        found: dict[str, tuple[int, int, int] | None] = {}
        for name, path in self._paths():
            try:
                status = os.stat(path)
                found[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
            except OSError:
                found[name] = None
        return found

    def _paths(self) -> list[tuple[str, Path]]:
        files = self._files
        named = [
            ("tls_cert", files.tls_cert),
            ("tls_key", files.tls_key),
            ("tls_client_ca", files.tls_client_ca),
            ("tls_ca", files.tls_ca),
        ]
        return [(name, path) for name, path in named if path is not None]

    def _checked(self) -> _Read:
        contents = {}
        for name, path in self._paths():
            try:
                contents[name] = path.read_bytes()
            except OSError as error:
                raise InvalidInput(name, str(path), f"cannot be read: {error.strerror}; name a PEM file") from error
            if name != "tls_key" and _BEGIN not in contents[name]:
                raise InvalidInput(name, str(path), "holds no PEM certificate")
        self._check_pair(contents["tls_cert"], contents["tls_key"])
        client_ca = contents.get("tls_client_ca")
        return _Read(
            cert=contents["tls_cert"],
            key=contents["tls_key"],
            client_ca=client_ca,
            ca=contents.get("tls_ca", client_ca),
        )

    def _check_pair(self, cert: bytes, key: bytes) -> None:
        """See that the key fits. What was read is checked, not the files, which may change in between."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            _load(context, cert, key)
        except (ssl.SSLError, OSError) as error:
            path = str(self._files.tls_key)
            raise InvalidInput("tls_key", path, f"is not the key of {self._files.tls_cert}, in PEM: {error}") from error

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._read.key, self._read.cert)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=self._read.client_ca)

    def _channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._read.ca, self._read.key, self._read.cert)

    def _load_https(self) -> None:
        _load(self.https, self._read.cert, self._read.key)


def _load(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Load a pair that is in memory. Python takes it from files alone: this one is never on a disk."""
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(key + b"\n" + cert)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def names_in(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the names of the certificate that the peer of a gRPC connection has shown: SANs first, then the CN."""
    if list(auth_context.get("transport_security_type", ())) != [b"ssl"]:
        return []
    found: dict[str, None] = {}
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        for value in auth_context.get(key, ()):
            found[value.decode("utf-8", "replace")] = None
    return list(found)
