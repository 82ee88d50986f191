"""Files with further settings of librdkafka, as nodes and workers read them."""

from pathlib import Path

import pytest

from server.dispatch.kafka_settings import producer_settings, read_properties
from server.domain.errors import InvalidInput
from worker_sdk import kafka_settings
from worker_sdk.errors import ConfigurationError

TEXT = "# of the staging cluster\n\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\n"
FOUND = {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}


def test_both_sides_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text(TEXT)
    assert read_properties(str(path)) == FOUND
    assert kafka_settings.read_properties(path) == FOUND
    assert read_properties("") == {}


def test_lines_are_refused_without_showing_them(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text("hunter2\n")
    with pytest.raises(InvalidInput, match="line 1 is not name=value") as caught:
        read_properties(str(path))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="line 1 of") as refused:
        kafka_settings.read_properties(path)
    assert "hunter2" not in str(refused.value)


def test_what_the_promises_rest_on_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text("acks=0\n")
    with pytest.raises(InvalidInput, match="acks is set by the node"):
        read_properties(str(path))
    with pytest.raises(ConfigurationError, match=r"enable\.auto\.commit is set by the worker"):
        kafka_settings.KafkaSettings(servers="a:1", properties={"enable.auto.commit": "false"})


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_properties(str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="cannot read"):
        kafka_settings.read_properties(tmp_path / "none")


def test_the_producer_is_idempotent() -> None:
    settings = producer_settings("a:1,b:2", {"linger.ms": "50"})
    assert settings["bootstrap.servers"] == "a:1,b:2"
    assert (settings["enable.idempotence"], settings["acks"], settings["linger.ms"]) == (True, "all", "50")
