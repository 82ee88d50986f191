"""Settings of a node: what is refused, and how it is said."""

import pytest

from server.config import load_config, parse_span, unknown_variables
from server.domain.errors import InvalidInput


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"listen": "7400"}, "listen"),
        ({"listen": "127.0.0.1:x"}, "listen"),
        ({"listen": "0.0.0.0:7400"}, "advertise"),
        ({"listen": "10.1.2.3:7400"}, "listen"),
        ({"listen": "node-a.example.org:7400"}, "listen"),
        ({"http_listen": "[fe80::1]:7480"}, "http_listen"),
        ({"tls_cert": "node.pem"}, "tls_key"),
        ({"tls_key": "node.key"}, "tls_cert"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca"),
        ({"insecure": "perhaps"}, "insecure"),
        ({"listen": "[::]:7400"}, "advertise"),
        ({"listen": "127.0.0.1:70000"}, "listen"),
        ({"advertise": "bad host:7400"}, "advertise"),
        ({"http_listen": "7480"}, "http_listen"),
        ({"http_listen": "no"}, "http_listen"),
        ({"listen": "127.0.0.1:7480"}, "http_listen"),
        ({"session_ttl": "1ms"}, "session_ttl"),
        ({"drain_grace": "2h"}, "drain_grace"),
        ({"worker_lease": "99999999999999d"}, "worker_lease"),
        ({"max_payload_bytes": "2000000"}, "max_payload_bytes"),
        ({"hot_connections": "1"}, "hot_connections"),
        ({"keep_completed": "1h"}, "keep_completed"),
        ({"heartbeat": "10s", "worker_lease": "15s"}, "worker_lease"),
        ({"heartbeat": "0s"}, "heartbeat"),
        ({"sweep": "soon"}, "sweep"),
        ({"hot_connections": "many"}, "hot_connections"),
        ({"log_format": "xml"}, "log_format"),
        ({"log_level": "loud"}, "log_level"),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_config(settings, {})
    assert refused.value.field == field


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    environment = {"SHARDWHEEL_NODE": "from-variable", "SHARDWHEEL_SWEEP": "500ms"}
    config = load_config({"node": "from-flag"}, environment)
    assert (config.node, config.sweep, config.listen) == ("from-flag", parse_span("500ms"), "127.0.0.1:7400")


def test_a_node_on_all_addresses_says_how_it_is_reached() -> None:
    config = load_config({"listen": "0.0.0.0:7400", "advertise": "node-a.example.org:7400", "insecure": True}, {})
    assert config.advertise == "node-a.example.org:7400"


TLS = {"tls_cert": "node.pem", "tls_key": "node.key"}


@pytest.mark.parametrize("more", [TLS, {"insecure": "true"}])
def test_a_node_listens_beyond_its_machine_with_tls_or_if_it_is_told_to(more: dict[str, str]) -> None:
    place = {"listen": "10.1.2.3:7400", "http_listen": "off"}
    with pytest.raises(InvalidInput, match="beyond this machine: give tls_cert and tls_key, or allow it"):
        load_config(place, {})
    assert load_config({**place, **more}, {}).beyond_loopback


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_tls(address: str) -> None:
    assert not load_config({"listen": address}, {}).beyond_loopback


@pytest.mark.parametrize(("wrong", "meant"), [("ZOOKEPER", "ZOOKEEPER"), ("DATABSE", "DATABASE"), ("NODES", "NODE")])
def test_a_misspelled_variable_is_refused(wrong: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"is no setting; was SHARDWHEEL_{meant} meant"):
        unknown_variables({f"SHARDWHEEL_{wrong}": "s3cret"})


def test_variables_of_others_are_left_alone() -> None:
    of_others = [
        "ADDRESS",
        "TOKEN",
        "TEST_ZOOKEEPER",
        "PORT",
        "PORT_7400_TCP_ADDR",
        "SERVICE_HOST",
        "SERVICE_PORT_GRPC",
    ]
    environment = {f"SHARDWHEEL_{name}": "x" for name in [*of_others, "LISTEN", "IMAGE"]} | {"PATH": "/bin"}
    assert unknown_variables(environment) == ["SHARDWHEEL_IMAGE"]


def test_the_http_port_can_be_switched_off() -> None:
    assert load_config({"http_listen": "off"}, {}).http_listen == "off"


def test_the_database_is_not_shown() -> None:
    assert "secret" not in repr(load_config({"database": "postgresql://u:secret@h/d"}, {}))
