"""Log lines: what they hold, and what must never get into them."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from server.observe.logging import configure_logging, masked

log = logging.getLogger("tests.logging")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The root logger as it was, for the tests after this one."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def lines() -> io.StringIO:
    stream = io.StringIO()
    configure_logging("json", "info", stream=stream)
    return stream


def records(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_with_its_extra_fields(lines: io.StringIO) -> None:
    log.warning("shard fenced", extra={"shard": 3, "epoch": 7, "owners": ["a", "b"], "wait": timedelta(seconds=1)})
    [record] = records(lines)
    stamp = record.pop("timestamp")
    assert isinstance(stamp, str)
    assert stamp.endswith("Z")
    assert abs(datetime.fromisoformat(stamp) - datetime.now(UTC)) < timedelta(seconds=10)
    assert record == {
        "level": "warning",
        "event": "shard fenced",
        "logger": "tests.logging",
        "shard": 3,
        "epoch": 7,
        "owners": ["a", "b"],
        "wait": "0:00:01",
    }


def test_every_line_names_the_node() -> None:
    stream = io.StringIO()
    configure_logging("json", "info", node="node-a", stream=stream)
    log.info("something")
    log.info("another is meant", extra={"node": "node-b"})
    assert [record["node"] for record in records(stream)] == ["node-a", "node-b"]


def test_messages_with_arguments_and_line_breaks_stay_one_line(lines: io.StringIO) -> None:
    log.info("job %s refused:\n%s", 7, "\ud800")
    log.info("big", extra={"number": 2**80})
    assert [record["event"] for record in records(lines)] == ["job 7 refused:\n\ud800", "big"]


def test_the_traceback_of_an_exception_appears_once(lines: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("division")
    except ZeroDivisionError:
        log.exception("loop step failed", extra={"loop": "sweep"})
    [record] = records(lines)
    assert record["event"] == "loop step failed"
    assert lines.getvalue().count("Traceback") == 1
    assert str(record["exception"]).endswith("ZeroDivisionError: division")


def test_levels(lines: io.StringIO) -> None:
    log.debug("hidden")
    log.info("shown")
    assert [record["event"] for record in records(lines)] == ["shown"]
    configure_logging("json", "error", stream=lines)
    log.warning("hidden")
    assert len(records(lines)) == 1


def test_only_the_last_configuration_counts() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("json", "info", stream=first)
    configure_logging("text", "info", stream=second)
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


@pytest.mark.parametrize("name", ["payload", "result", "dsn", "database", "password", "token"])
@pytest.mark.parametrize("format", ["json", "text"])
def test_fields_of_users_and_credentials_are_left_out(format: str, name: str) -> None:
    stream = io.StringIO()
    configure_logging(format, "info", stream=stream)
    log.info("event", extra={name: "s3cret"})
    log.info("event", extra={name: b"s3cret"})
    assert "s3cret" not in stream.getvalue()
    assert stream.getvalue().count("***") == 2


@pytest.mark.parametrize("format", ["json", "text"])
def test_exceptions_show_neither_passwords_nor_rows_nor_local_variables(format: str) -> None:
    stream = io.StringIO()
    configure_logging(format, "info", stream=stream)
    payload = "s3cret"
    try:
        raise ValueError(
            f"bad postgresql://user:{payload}@host/db\nDETAIL:  Failing row contains (1, {payload},\n {payload}).\n"
            f"CONTEXT:  COPY jobs, line 1, column payload: {payload}"
        )
    except ValueError:
        log.exception("failed")
    assert "postgresql://user:***@host/db" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgres://u:p@h:5432/d?a=b", "postgres://u:***@h:5432/d?a=b"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("host=h password=abc user=u", "host=h password=*** user=u"),
        ("host=h password='a b\\' c' user=u", "host=h password=*** user=u"),
        ("postgresql://h/d?password=abc&user=u", "postgresql://h/d?password=***&user=u"),
        ('password authentication failed for user "u"', 'password authentication failed for user "u"'),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
    ],
)
def test_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_text_cannot_forge_lines_or_steer_the_terminal() -> None:
    stream = io.StringIO()
    configure_logging("text", "info", stream=stream)
    log.info("worker connected", extra={"worker": "\x1b[2J\nforged"})
    log.info("two\nlines")
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud"), ("json", "INFO")])
def test_unknown_settings_are_refused(format: str, level: str) -> None:
    with pytest.raises(ValueError, match="has to be"):
        configure_logging(format, level)
