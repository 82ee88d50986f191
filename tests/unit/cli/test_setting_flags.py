"""Flags of settings: one for each, with its meaning, its variable and its default."""

import re
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from server.cli.command import app
from server.cli.failure import refusal
from server.cli.setting_flags import check_database, read_config
from server.config import NodeConfig
from server.domain.errors import InvalidInput

URI = "postgresql://user@host/db"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in fields(NodeConfig):
        monkeypatch.delenv(f"SHARDWHEEL_{field.name.upper()}", raising=False)


def test_help_names_every_setting_with_meaning_variable_and_default() -> None:
    outcome = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert outcome.exit_code == 0
    text = re.sub(r"\s+", " ", outcome.output)
    for field in fields(NodeConfig):
        flag, variable = f"--{field.name.replace('_', '-')} ", f"SHARDWHEEL_{field.name.upper()}"
        metavar = "" if field.default is False else "[A-Z]+ "
        assert re.search(rf"{flag}{metavar}\S.* \[env: {variable}[;\]]", text), field.name
    assert "--session-ttl DURATION The node is dead to the others this long after its last sign of life." in text
    assert "[env: SHARDWHEEL_SESSION_TTL; default: 10s]" in text
    assert "[env: SHARDWHEEL_KEEP_COMPLETED; default: 7d]" in text


def test_flags_win_over_variables_which_win_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWHEEL_DATABASE", URI)
    monkeypatch.setenv("SHARDWHEEL_NODE", "from-variable")
    monkeypatch.setenv("SHARDWHEEL_HOT_CONNECTIONS", "12")
    config = read_config({"node": "from-flag", "listen": None})
    assert (config.database, config.node, config.hot_connections) == (URI, "from-flag", 12)
    assert config.listen == NodeConfig().listen


@pytest.mark.parametrize("uri", ["", "host=h password=s3cret", "mysql://u:s3cret@h/d", "u:s3cret@h"])
def test_what_is_no_uri_is_refused_without_being_shown(uri: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_database(uri)
    text = refusal(caught.value)
    assert "--database (SHARDWHEEL_DATABASE)" in text
    assert "postgresql://user@host:5432/name" in text
    assert "s3cret" not in text + str(caught.value)


def test_a_refusal_names_the_variable_if_that_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWHEEL_SESSION_TTL", "soon")
    with pytest.raises(InvalidInput) as caught:
        read_config({"database": URI})
    assert refusal(caught.value).startswith("SHARDWHEEL_SESSION_TTL: takes a duration")
