"""What users see when a call goes wrong, and what each call carries."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme

from shardwheel.v1.admin_service_pb2 import GetStatusResponse
from tests.integration.shardctl.conftest import Shardctl
from tests.integration.shardctl.scripted_server import Refusal, ScriptedServer, scripted_server


def test_no_server_names_the_address_and_how_to_start_one(shardctl: Shardctl) -> None:
    ran = shardctl("status", "--address", "127.0.0.1:1")
    assert (ran.code, ran.stdout) == (1, "")
    first, second = ran.stderr.splitlines()
    assert first.startswith("error: cannot reach a server at 127.0.0.1:1: ")
    assert "Connection refused" in first
    assert second == "Start one with `shardwheel dev`, or name another with --address or SHARDWHEEL_ADDRESS."


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_silent_server_is_given_up_at_the_timeout(shardctl: Shardctl, silent: str) -> None:
    start = time.monotonic()
    ran = shardctl("status", "--address", silent, "--timeout", "300ms")
    assert time.monotonic() - start < 5
    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"error: {silent} gave no answer within 300ms\n")
    assert "--timeout" in ran.stderr


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        (grpc.StatusCode.NOT_FOUND, ["error: not found: x", "Looked in namespace 'tenant'"]),
        (grpc.StatusCode.FAILED_PRECONDITION, ["error: x (FAILED_PRECONDITION)"]),
        (grpc.StatusCode.ALREADY_EXISTS, ["error: x (ALREADY_EXISTS)"]),
        (grpc.StatusCode.UNAUTHENTICATED, ["error: not authenticated: x", "--token or SHARDWHEEL_TOKEN"]),
        (grpc.StatusCode.PERMISSION_DENIED, ["error: not allowed: x", "namespace 'tenant'"]),
        (grpc.StatusCode.UNIMPLEMENTED, ["does not know this call: x"]),
        (grpc.StatusCode.UNAVAILABLE, ["error: x (UNAVAILABLE)", "Try again in 3s."]),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ["error: x (RESOURCE_EXHAUSTED)", "Try again in 3s."]),
        (grpc.StatusCode.INTERNAL, ["error: x (INTERNAL)"]),
    ],
)
def test_errors_of_the_server_exit_1_and_say_what_to_do(
    server: ScriptedServer, shardctl: Shardctl, code: grpc.StatusCode, texts: list[str]
) -> None:
    server.answer("GetJob", Refusal(code, "x", retry_in_s=3))
    ran = shardctl("jobs", "get", "1", "--namespace", "tenant", "-o", "json")
    assert (ran.code, ran.stdout) == (1, "")
    for text in texts:
        assert text in ran.stderr


def test_refused_input_names_every_field_and_is_safe_to_print(server: ScriptedServer, shardctl: Shardctl) -> None:
    fields = (("job.priority", "9 is outside 1 to 5"), ("job.handler", "\x1b[31mred\nlines"))
    server.answer("SubmitJob", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "refused", *fields))
    ran = shardctl("jobs", "submit", "h", "--priority", "9")
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr.splitlines() == [
        "error: job.priority: 9 is outside 1 to 5",
        "error: job.handler: \\x1b[31mred\\nlines",
    ]


def test_refused_input_without_fields_shows_the_message(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetJob", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "this and that"))
    ran = shardctl("jobs", "get", "1")
    assert (ran.code, ran.stderr) == (2, "error: refused: this and that\n")


def test_every_call_has_a_deadline_and_the_token(server: ScriptedServer, shardctl: Shardctl) -> None:
    server.answer("GetStatus", GetStatusResponse())
    assert shardctl("status").code == 0
    assert shardctl("--token", "secret", "status", "--timeout", "3s").code == 0
    assert 8 < server.time_left[0] < 10.5
    assert 1 < server.time_left[1] < 3.5
    assert "authorization" not in server.metadata[0]
    assert server.metadata[1]["authorization"] == "Bearer secret"


def test_global_options_stand_before_between_and_behind(
    server: ScriptedServer, shardctl: Shardctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWHEEL_NAMESPACE", "env")
    server.answer("GetJob", Refusal(grpc.StatusCode.NOT_FOUND, "x"))
    for arguments, namespace in (
        (["jobs", "get", "1"], "env"),
        (["--namespace", "first", "jobs", "get", "1"], "first"),
        (["--namespace", "first", "jobs", "--namespace", "second", "get", "1"], "second"),
        (["--namespace", "first", "jobs", "--namespace", "second", "get", "1", "--namespace", "third"], "third"),
    ):
        assert f"namespace '{namespace}'" in shardctl(*arguments).stderr


def test_tls_with_a_ca_file(shardctl: Shardctl, tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    other = trustme.CA()
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    issued = ca.issue_cert("localhost", "127.0.0.1")
    pair = (issued.private_key_pem.bytes(), b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    with scripted_server(grpc.ssl_server_credentials([pair])) as secure:
        secure.answer("GetStatus", GetStatusResponse(version="0.1.0"))
        ran = shardctl("status", "--address", secure.address, "--ca", str(tmp_path / "ca.pem"), "-o", "json")
        assert (ran.code, ran.json["version"]) == (0, "0.1.0")
        wrong = shardctl("status", "--address", secure.address, "--ca", str(tmp_path / "other.pem"))
        assert wrong.code == 1
        assert "error: cannot reach a server" in wrong.stderr
        plain = shardctl("status", "--address", secure.address, "--timeout", "2s")
        assert plain.code == 1
        assert "If it listens with TLS, give its CA with --ca." in plain.stderr


def test_a_ca_file_that_is_none_is_refused(shardctl: Shardctl, tmp_path: Path) -> None:
    missing = shardctl("status", "--ca", str(tmp_path / "none"))
    assert (missing.code, "--ca: cannot read" in missing.stderr) == (2, True)
    (tmp_path / "text").write_text("no certificate")
    wrong = shardctl("status", "--ca", str(tmp_path / "text"))
    assert (wrong.code, "holds no PEM certificate" in wrong.stderr) == (2, True)
