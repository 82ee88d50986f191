"""Credentials and certificates of tests."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme

from server.access.gate import Gate
from server.access.keyring import Changes, Keyring
from server.access.secret import digest_of, draw
from server.domain.access import parse_scopes
from server.store import tokens


async def no_changes(since: datetime | None) -> Changes:
    """A database that has never been given a credential."""
    return Changes(now=datetime.now(UTC), ever=False, credentials=[], node_keys=[])


def open_gate() -> Gate:
    """A gate that lets everybody do everything, as on a node for one's own machine."""
    keyring = Keyring(no_changes)
    keyring.ever = False
    return Gate(keyring, closed=False)


async def granted(dsn: str, *scopes: str, holder: str = "test") -> str:
    """Store a new token with these scopes, and return it."""
    token = draw()
    await tokens.ensure(dsn, digest_of(token), parse_scopes(scopes), name=holder, created_by="tests")
    return token


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with a token."""
    return (("authorization", f"Bearer {token}"),)


@dataclass(frozen=True)
class Site:
    """A certificate authority, and files of what it has issued."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def new(cls, folder: Path) -> "Site":
        """Make an authority whose certificate is in a file."""
        folder.mkdir(parents=True, exist_ok=True)
        site = cls(folder, trustme.CA())
        site.authority.cert_pem.write_to_path(str(site.ca))
        return site

    @property
    def ca(self) -> Path:
        """File of the authority's certificate."""
        return self.folder / "ca.pem"

    def issue(self, name: str, *identities: str, common_name: str | None = None) -> tuple[Path, Path]:
        """Issue a certificate for host names or addresses; return its file and that of its key."""
        issued = self.authority.issue_cert(*identities, common_name=common_name)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        # Replaced at once, as a cluster does it.
        for path, text in (
            (cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (key, issued.private_key_pem.bytes()),
        ):
            new = path.with_suffix(".new")
            new.write_bytes(text)
            new.replace(path)
        return cert, key

    def spoil(self, name: str) -> None:
        """Write something else over a key."""
        (self.folder / f"{name}.key").write_text("no key")

    def node_settings(self, *, client_ca: bool = False) -> dict[str, str]:
        """Settings of a node on the loopback interface with a certificate of this authority."""
        cert, key = self.issue("node", "127.0.0.1", "localhost")
        settings = {"tls_cert": str(cert), "tls_key": str(key), "tls_ca": str(self.ca)}
        return settings | ({"tls_client_ca": str(self.ca)} if client_ca else {})
