"""How values are written for people."""

from datetime import UTC, datetime, timedelta

import pytest

from server.web.format import body, first_line, moment, outcome_name, ranges, rate, relative, span, state_name
from shardwheel.v1.job_pb2 import Attempt, Job

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0042, "4 ms"),
        (1, "1 s"),
        (4.25, "4.2 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 40, "40 d"),
    ],
)
def test_spans_have_two_units_at_most(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_instants_are_seen_from_now_and_written_in_utc() -> None:
    assert relative(NOON - timedelta(minutes=3), NOON) == "3 min ago"
    assert relative(NOON + timedelta(hours=2, minutes=5), NOON) == "in 2 h 5 min"
    assert relative(NOON + timedelta(milliseconds=300), NOON) == "now"
    assert moment(NOON.astimezone()) == "2026-03-01 12:00:00 UTC"


def test_rates_have_the_digits_that_are_worth_reading() -> None:
    assert [rate(value) for value in (0, 0.25, 4.567, 45.67, 4567.8)] == ["0.0", "0.25", "4.57", "45.7", "4,568"]


def test_states_of_a_newer_version_are_shown_by_their_number() -> None:
    assert [state_name(Job.FAILED), state_name(99)] == ["failed", "state 99"]
    assert outcome_name(Attempt.WORKER_LOST) == "worker lost"


def test_runs_of_numbers_are_drawn_together() -> None:
    assert ranges([0, 1, 2, 14, 16, 17]) == "0–2, 14, 16–17"
    assert ranges([]) == ""


def test_an_error_is_what_comes_before_its_traceback() -> None:
    assert first_line("\nno funds\n\n  File x") == "no funds"


def test_json_is_indented_text_left_alone_and_the_rest_in_hexadecimal() -> None:
    assert (body(b'{"a":1}').text, body(b'{"a":1}').kind) == ('{\n  "a": 1\n}', "json")
    assert body(b'{"id":123456789012345678901234567890}').text == '{\n  "id": 123456789012345678901234567890\n}'
    assert body(b'"\\ud800"').text == '"\\ud800"'
    assert body(b"[" * 4000).kind == "text"
    assert (body("Grüße\n".encode()).text, body(b"x").kind) == ("Grüße\n", "text")
    assert (body(b"\x00\xff").text, body(b"\x00\xff").kind) == ("0000  00 ff", "hex")


@pytest.mark.parametrize("data", [b"a" * 10_000, "ü".encode() * 5_000, b"x" + "ü".encode() * 5_000, b"\xff" * 10_000])
def test_only_a_part_of_much_is_shown(data: bytes) -> None:
    shown = body(data)
    assert (shown.cut, shown.size) == (True, len(data))
    assert len(shown.text) <= 4096
    assert shown.kind == ("hex" if data[0] == 0xFF else "text")
