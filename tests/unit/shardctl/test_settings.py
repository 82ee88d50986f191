"""Global options: which place wins, and what is refused."""

from datetime import timedelta

import pytest

from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.settings import Format, GlobalOptions, resolve
from worker_sdk.tls import Tls


def test_defaults() -> None:
    settings = resolve(GlobalOptions(), {})
    assert (settings.address, settings.namespace, settings.token, settings.tls) == (
        "localhost:7400",
        "default",
        None,
        None,
    )
    assert (settings.output, settings.timeout, settings.call_timeout) == (Format.TABLE, None, timedelta(seconds=10))


def test_options_win_over_the_environment_and_the_nearer_place_over_the_farther() -> None:
    environment = {
        "SHARDWHEEL_ADDRESS": "env:1",
        "SHARDWHEEL_NAMESPACE": "env",
        "SHARDWHEEL_TOKEN": "env",
        "SHARDWHEEL_CA": "env.pem",
    }
    outer = GlobalOptions(address="outer:1", namespace="outer", timeout=timedelta(seconds=1))
    inner = GlobalOptions(address="inner:1", output=Format.JSON)
    settings = resolve(inner.over(outer), environment)
    assert (settings.address, settings.namespace, settings.token) == ("inner:1", "outer", "env")
    assert (settings.tls, settings.output, settings.call_timeout) == (
        Tls(ca="env.pem"),
        Format.JSON,
        timedelta(seconds=1),
    )


def test_an_empty_variable_counts_as_unset() -> None:
    settings = resolve(GlobalOptions(), {"SHARDWHEEL_ADDRESS": "", "SHARDWHEEL_TOKEN": "", "SHARDWHEEL_NAMESPACE": ""})
    assert (settings.address, settings.token, settings.namespace) == ("localhost:7400", None, "default")


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("node-1", "node-1:7400"),
        ("node-1:81", "node-1:81"),
        ("10.0.0.1", "10.0.0.1:7400"),
        ("::1", "[::1]:7400"),
        ("[::1]", "[::1]:7400"),
        ("[::1]:81", "[::1]:81"),
        ("dns:///nodes.example:7400", "dns:///nodes.example:7400"),
        ("unix:/run/shardwheel.sock", "unix:/run/shardwheel.sock"),
    ],
)
def test_an_address_gets_the_port_that_it_lacks(given: str, used: str) -> None:
    assert resolve(GlobalOptions(address=given), {}).address == used


@pytest.mark.parametrize(
    "address",
    [":7400", "node:", "node:0", "node:65536", "node:http", "a:b:c", "http://node:7400", "a b", "[]:1", "nöde"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(RefusedInputError, match=r"--address: .*is not HOST:PORT"):
        resolve(GlobalOptions(address=address), {})


def test_a_token_with_a_line_break_and_a_timeout_of_nothing_are_refused() -> None:
    with pytest.raises(RefusedInputError, match="--token"):
        resolve(GlobalOptions(), {"SHARDWHEEL_TOKEN": "secret\n"})
    with pytest.raises(RefusedInputError, match="--timeout"):
        resolve(GlobalOptions(timeout=timedelta()), {})
