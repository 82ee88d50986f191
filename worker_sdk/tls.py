"""How connections are protected."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from worker_sdk.errors import ConfigurationError

CA_VARIABLE = "SHARDWHEEL_CA"
CERT_VARIABLE = "SHARDWHEEL_CERT"
KEY_VARIABLE = "SHARDWHEEL_KEY"
SYSTEM = "system"
"""Instead of a file: the authorities that the system trusts."""

PathText = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """What the files hold."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what a channel needs."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files for TLS, in PEM. They are read for each new connection, so they may be replaced while the program runs."""

    ca: PathText = SYSTEM
    """The authorities that the nodes' certificates come from."""
    cert: PathText | None = None
    """The certificate of this program, if the nodes ask for one, with those between it and its authority."""
    key: PathText | None = None
    """Its key."""

    @classmethod
    def resolve(cls, tls: "Tls | None", ca: PathText | None, environment: Mapping[str, str]) -> "Tls | None":
        """Return `tls`, else that of `ca`, else what the environment says; None for no TLS.

        Raises `ConfigurationError` if they contradict each other, or a file cannot be read.
        """
        if tls is not None and ca is not None:
            raise ConfigurationError("give ca or tls, not both: tls=Tls(ca=…)")
        cert, key = environment.get(CERT_VARIABLE) or None, environment.get(KEY_VARIABLE) or None
        ca = ca or environment.get(CA_VARIABLE) or None
        if tls is None and (ca or cert or key):
            tls = cls(ca=ca or SYSTEM, cert=cert, key=key)
        if tls is not None:
            if (tls.cert is None) != (tls.key is None):
                raise ConfigurationError("cert and key: a certificate needs its key, and a key its certificate")
            tls.read()
        return tls

    def read(self) -> Pem:
        """Return what the files hold. Raises `ConfigurationError` for one that cannot be read."""
        return Pem(
            ca=None if self.ca == SYSTEM else _read("ca", self.ca),
            cert=None if self.cert is None else _read("cert", self.cert),
            key=None if self.key is None else _read("key", self.key),
        )

    def stamp(self) -> tuple[int, ...]:
        """Return a value that is another one when the files have changed."""
        paths = [path for path in (self.ca, self.cert, self.key) if path is not None and path != SYSTEM]
        try:
            return tuple(os.stat(path).st_mtime_ns for path in paths)
        except OSError:
            # One is being replaced; the next look sees it.
            return ()


def _read(name: str, path: PathText) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot read {str(path)!r}: {error.strerror}; name a PEM file") from error
