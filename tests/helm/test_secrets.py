"""What the chart draws: strong, one and the same everywhere, kept over upgrades, and good for TLS between real ends."""

import base64
import re
import ssl
import tempfile
from typing import Any

import grpc
import pytest

from tests.helm.chart import CHART, VALUES, Manifest, Values, containers, documents, helm, manifests, one, pods
from tests.helm.kube_api import kube_api

POD = "sw-shardwheel-0.sw-shardwheel-nodes.jobs.svc.cluster.local"
USUAL = VALUES["usual"]


def secret(found: list[Manifest], name: str) -> dict[str, str]:
    data = one(found, "Secret", name)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def drawn(found: list[Manifest]) -> dict[str, dict[str, str]]:
    return {made["metadata"]["name"]: made["data"] for made in found if made["kind"] == "Secret"}


def upgrade(installed: list[Manifest], values: Values) -> list[Manifest]:
    """Render as an upgrade of a cluster that has what was installed."""
    with kube_api(installed, "jobs") as address:
        asking = ["--dry-run=server", "--kube-apiserver", address, "--disable-openapi-validation"]
        done = helm("template", "sw", str(CHART), "--namespace", "jobs", "--is-upgrade", *asking, values=values)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def test_secrets_are_kept_over_upgrades() -> None:
    for name in ("usual", "trial"):
        installed = manifests(VALUES[name])
        assert drawn(upgrade(installed, {**VALUES[name], "minReadySeconds": 20})) == drawn(installed)


def test_each_install_draws_its_own() -> None:
    first, second = drawn(manifests(USUAL)), drawn(manifests(USUAL, upgrade=True))
    for name, data in first.items():
        assert not set(data.values()) & set(second[name].values()), name


@pytest.mark.parametrize("change", [{"extraNames": ["jobs.example.org"]}, {"renewal": 2}, {"days": 30}])
def test_a_certificate_for_something_else_is_signed_anew_by_the_same_authority(change: dict[str, Any]) -> None:
    installed = manifests(USUAL)
    upgraded = upgrade(installed, {**USUAL, "tls": change})
    assert secret(upgraded, "sw-shardwheel-ca") == secret(installed, "sw-shardwheel-ca")
    assert secret(upgraded, "sw-shardwheel-tls")["tls.crt"] != secret(installed, "sw-shardwheel-tls")["tls.crt"]
    for name in (POD, *change.get("extraNames", ())):
        handshake(secret(upgraded, "sw-shardwheel-tls"), name)


def test_the_token_has_256_bits_and_is_the_one_that_is_migrated_with() -> None:
    found = manifests(USUAL)
    token = secret(found, "sw-shardwheel-admin-token")["token"]
    assert re.fullmatch("[0-9A-Za-z]{43}", token)
    assert secret(found, "sw-shardwheel-migrate")["token"] == token


def test_the_url_of_a_trial_has_the_password_that_its_postgres_has() -> None:
    found = manifests(VALUES["trial"])
    password = secret(found, "sw-shardwheel-trial-postgres")["password"]
    assert secret(found, "sw-shardwheel-database")["url"] == (
        f"postgresql://shardwheel:{password}@sw-shardwheel-trial-postgres.jobs.svc.cluster.local:5432/shardwheel"
    )


def test_a_url_among_the_values_ends_in_secrets_alone() -> None:
    values = VALUES["everything"]
    found = manifests(values)
    for name in ("jobs-database", "jobs-migrate"):
        assert secret(found, name)["url"] == values["database"]["url"]
    assert "p%40ss" not in str([made for made in found if made["kind"] != "Secret"])


def test_no_pod_has_the_key_of_the_authority() -> None:
    found = manifests(USUAL)
    assert "sw-shardwheel-ca" in drawn(found)
    for name, spec in pods(found):
        assert "sw-shardwheel-ca" not in str(spec), name
    # `helm test` needs the authority's certificate, not the nodes' key.
    (volume,) = one(found, "Pod")["spec"]["volumes"]
    assert [item["key"] for item in volume["secret"]["items"]] == ["ca.crt"]


def test_nothing_is_drawn_that_is_given() -> None:
    assert drawn(manifests(VALUES["own-certificate"])) == {}
    assert {*drawn(manifests(VALUES["plain"]))} == {"sw-shardwheel-admin-token"}
    migrate = containers(one(manifests(VALUES["own-certificate"]), "Job"))[0]
    assert {"secretKeyRef": {"name": "db", "key": "url"}} in [each.get("valueFrom") for each in migrate["env"]]


@pytest.mark.parametrize(
    "name", [POD, "sw-shardwheel", "sw-shardwheel.jobs.svc", "sw-shardwheel.jobs.svc.cluster.local", "127.0.0.1"]
)
def test_the_certificate_is_good_for_every_name_of_a_node(name: str) -> None:
    handshake(secret(manifests(USUAL), "sw-shardwheel-tls"), name)


def test_the_certificate_is_good_for_nobody_else() -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(secret(manifests(USUAL), "sw-shardwheel-tls"), "shardwheel.jobs.svc.cluster.local")


async def test_grpc_takes_certificate_and_key() -> None:
    pem = {key: text.encode() for key, text in secret(manifests(USUAL), "sw-shardwheel-tls").items()}
    server = grpc.aio.server()
    pair = (pem["tls.key"], pem["tls.crt"])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], pem["ca.crt"], True))
    await server.start()
    # Nodes are clients of each other, with the same certificate.
    credentials = grpc.ssl_channel_credentials(pem["ca.crt"], *pair)
    options = [("grpc.ssl_target_name_override", POD)]
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
            nothing: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/none/None")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await nothing(b"", timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)


def handshake(pem: dict[str, str], name: str) -> None:
    """Shake hands over TLS as a client that trusts the authority and wants this name. Raises `ssl.SSLError`."""
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(accepting, pem)
    asking = ssl.create_default_context(cadata=pem["ca.crt"])
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        asking.wrap_bio(back, there, server_hostname=name),
        accepting.wrap_bio(there, back, server_side=True),
    ]
    while ends:
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


def load_pair(context: ssl.SSLContext, pem: dict[str, str]) -> None:
    """Python takes certificates from files only."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem["tls.key"] + pem["tls.crt"])
        file.flush()
        context.load_cert_chain(file.name)
