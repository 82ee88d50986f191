"""Secrets, payloads and results are in nothing that anybody prints."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from server.access.secret import digest_of
from tests.support.access import Site
from tests.support.commands import environment, running, shardwheel
from worker_sdk import Client, RetryPolicy, ShardwheelError, Tls

TOKEN: Final = "planted-token-planted-token-planted-token-1"
PAYLOAD: Final = "planted-payload"
WORKER: Final = """
from worker_sdk import Context, Worker

worker = Worker()


@worker.handler("mail")
def mail(payload: str, ctx: Context) -> str:
    ctx.progress("planted-progress")
    if payload.endswith("fail"):
        raise ValueError("no details")
    return "planted-result" * (100_000 if payload.endswith("large") else 1)
"""
#: What all of them begin with, as it is, in base64 and in hexadecimal; and what the database has of the token.
PLANTED: Final = ("planted", "cGxhbnRlZ", "706c616e746564", digest_of(TOKEN).hex())


@contextmanager
def running_worker(folder: Path, variables: dict[str, str]) -> Iterator[Path]:
    """A worker, as long as the block runs; yields the file of its output."""
    (folder / "mailer.py").write_text(WORKER)
    output = folder / "worker.out"
    with output.open("w") as file:
        command = [sys.executable, "-m", "worker_sdk", "mailer:worker", "--log-level", "DEBUG"]
        process = subprocess.Popen(command, env=environment(**variables), stdout=file, stderr=file, cwd=folder)
    try:
        yield output
    finally:
        process.terminate()
        process.wait(60)


def shardctl(folder: Path, variables: dict[str, str], *arguments: str) -> str:
    """Run a command; return what it has printed."""
    command = [sys.executable, "-m", "shard_manager.shardctl", *arguments]
    done = subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=60, cwd=folder, check=False
    )
    return done.stdout + done.stderr


def work(client: Client) -> list[str]:
    """Run jobs to all kinds of ends, and have some refused; return the texts of the errors."""
    once = RetryPolicy(max_attempts=1)
    for end in ("", "-fail", "-large"):
        client.wait(client.submit("mail", PAYLOAD + end, retry=once).job_id, timeout=60)
    texts = []
    for payload, options in ((PAYLOAD, {"priority": 77}), (PAYLOAD, {"labels": {"": "x"}}), (PAYLOAD * 100_000, {})):
        with pytest.raises(ShardwheelError) as refused:
            client.submit("mail", payload, **options)
        texts.append(str(refused.value))
    return texts


def test_nothing_that_is_printed_has_a_secret_in_it(empty_database: str, tmp_path: Path) -> None:
    site = Site.new(tmp_path / "tls")
    token_file = tmp_path / "admin-token"
    token_file.write_text(TOKEN + "\n")
    node_side = {
        "SHARDWHEEL_DATABASE": empty_database,
        "SHARDWHEEL_LISTEN": "127.0.0.1:0",
        "SHARDWHEEL_LOG_LEVEL": "debug",
        **{f"SHARDWHEEL_{name.upper()}": value for name, value in site.node_settings().items()},
    }
    migrated = shardwheel("migrate", "--admin-token-file", str(token_file), folder=tmp_path, variables=node_side)
    assert migrated.returncode == 0, migrated.stderr
    texts = [migrated.stdout, migrated.stderr]
    with running("serve", folder=tmp_path, variables=node_side) as node:
        node.wait_for("serves gRPC on ")
        address = node.out.partition("serves gRPC on ")[2].partition(",")[0]
        client_side = {"SHARDWHEEL_ADDRESS": address, "SHARDWHEEL_CA": str(site.ca), "SHARDWHEEL_TOKEN": TOKEN}
        with (
            running_worker(tmp_path, client_side) as worker,
            Client(address, tls=Tls(ca=site.ca), token=TOKEN) as client,
        ):
            texts += work(client)
        texts.append(worker.read_text())
        for arguments in ("status", "tokens list", "jobs list", "workers list", "namespaces list"):
            texts.append(shardctl(tmp_path, client_side, *arguments.split()))
        for wrong in (TOKEN + "x", TOKEN + "\n"):
            texts.append(shardctl(tmp_path, client_side | {"SHARDWHEEL_TOKEN": wrong}, "status"))
        node.stop(signal.SIGTERM)
        texts += [node.out, node.err]
    text = "\n".join(texts)
    for witness in ("admin call", "worker connected", "not authenticated", "takes at most"):
        assert witness in text, f"{witness!r} is not in what was looked through"
    for secret in PLANTED:
        assert secret not in text, text[max(0, text.index(secret) - 300) :][:600]
