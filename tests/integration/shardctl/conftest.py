"""The command line against a scripted server."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from shard_manager.shardctl.main import app
from tests.integration.shardctl.scripted_server import ScriptedServer, scripted_server

VARIABLES = (
    "SHARDWHEEL_ADDRESS",
    "SHARDWHEEL_NAMESPACE",
    "SHARDWHEEL_TOKEN",
    "SHARDWHEEL_TOKEN_FILE",
    "SHARDWHEEL_CA",
    "SHARDWHEEL_CERT",
    "SHARDWHEEL_KEY",
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The document on stdout."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        return document

    @property
    def widest(self) -> int:
        """Columns of the widest line on stdout."""
        return max(map(len, self.stdout.splitlines()), default=0)


Shardctl = Callable[..., Ran]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server whose answers the test writes."""
    with scripted_server() as server:
        yield server


@pytest.fixture
def shardctl(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Shardctl:
    """Runs a command against the server."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        result = CliRunner().invoke(app, ["--address", server.address, *arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run
