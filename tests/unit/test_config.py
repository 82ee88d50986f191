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
    config = load_config({"listen": "0.0.0.0:7400", "advertise": "node-a.example.org:7400"}, {})
    assert config.advertise == "node-a.example.org:7400"


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
