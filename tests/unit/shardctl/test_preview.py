"""Previews without a server, through the command line."""

import json

import pytest
from typer.testing import CliRunner

from shard_manager.shardctl.main import app

NOWHERE = ["--address", "127.0.0.1:1"]


def preview(*options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["schedules", "preview", *options, *NOWHERE])
    return result.exit_code, result.stdout, result.stderr


def test_the_json_is_one_object_with_the_firings_alone() -> None:
    code, stdout, stderr = preview(
        *("--cron", "30 1 * * *", "--time-zone", "America/New_York"),
        *("--after", "2026-10-31T16:00:00Z", "--count", "2", "-o", "json"),
    )
    assert (code, stderr) == (0, "")
    assert stdout == '{"firings": ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]}\n'


def test_notes_stand_behind_the_firings_where_there_are_any() -> None:
    code, stdout, _ = preview("--cron", "0 0 13 * 5", "--after", "2026-01-01T00:00:00Z", "--count", "4", "-o", "json")
    data = json.loads(stdout)
    assert code == 0
    assert list(data) == ["firings", "notes"]
    assert data["firings"] == [
        "2026-01-02T00:00:00Z",
        "2026-01-09T00:00:00Z",
        "2026-01-13T00:00:00Z",
        "2026-01-16T00:00:00Z",
    ]
    assert "either" in data["notes"][0]


@pytest.mark.parametrize(
    ("options", "firings"),
    [
        (
            [
                "--cron",
                "45 1 * * *",
                "--time-zone",
                "Australia/Lord_Howe",
                "--after",
                "2026-04-04T00:00:00Z",
                "--count",
                "1",
            ],
            ["2026-04-04T14:45:00Z"],
        ),
        (
            [
                *("--cron", "45 1 * * *", "--time-zone", "Australia/Lord_Howe", "--after", "2026-04-04T00:00:00Z"),
                *("--count", "2", "--fold", "both"),
            ],
            ["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"],
        ),
        (
            [
                *("--cron", "30 2 * * *", "--time-zone", "America/New_York", "--after", "2026-03-07T17:00:00Z"),
                *("--count", "1", "--gap", "skip"),
            ],
            ["2026-03-09T06:30:00Z"],
        ),
        (
            ["--every", "90m", "--after", "2026-01-01T00:00:00Z", "--count", "2"],
            ["2026-01-01T01:30:00Z", "2026-01-01T03:00:00Z"],
        ),
        (
            ["--every", "1h", "--anchor", "2026-01-01T00:10:00Z", "--after", "2026-01-01T00:10:00Z", "--count", "1"],
            ["2026-01-01T01:10:00Z"],
        ),
        (["--at", "2026-01-01T00:00:00Z", "--after", "2025-01-01T00:00:00Z"], ["2026-01-01T00:00:00Z"]),
        (["--at", "2026-01-01T00:00:00Z", "--after", "2026-01-01T00:00:00Z"], []),
        (
            ["--cron", "@hourly", "--after", "2026-01-01T00:00:00Z", "--end", "2026-01-01T02:00:00Z"],
            ["2026-01-01T01:00:00Z"],
        ),
        (
            ["--cron", "*/15 * * * * *", "--after", "2026-01-01T00:00:00Z", "--count", "2"],
            ["2026-01-01T00:00:15Z", "2026-01-01T00:00:30Z"],
        ),
    ],
)
def test_firings(options: list[str], firings: list[str]) -> None:
    code, stdout, stderr = preview(*options, "-o", "json")
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)["firings"] == firings


def test_a_name_decides_what_h_stands_for() -> None:
    def firing(*options: str) -> str:
        code, stdout, _ = preview(*options, "--cron", "H H * * *", "--after", "2026-01-01T00:00:00Z", "-o", "json")
        assert code == 0
        return str(json.loads(stdout)["firings"][0])

    assert firing("nightly") == firing("nightly")
    assert len({firing(f"schedule-{number}") for number in range(5)}) > 1


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("60 * * * *", "cron: minute: 60 is outside 0-59"),
        ("0 0 31 2 *", "cron: day-of-month: 31 never occurs"),
        ("* * * *", "cron: "),
        ("", "cron: "),
        ("1," * 10_000 + "1 * * * *", "cron: "),
        ("* * * * \x1b[31m", "cron: "),
    ],
)
def test_a_refused_expression_exits_2_with_field_and_reason_on_stderr(expression: str, reason: str) -> None:
    code, stdout, stderr = preview("--cron", expression, "-o", "json")
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"error: {reason}")
    assert "\x1b" not in stderr
    assert len(stderr) < 1000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--cron", "@daily", "--time-zone", "Mars/Base"], "error: time_zone: is not an IANA time zone"),
        (["--cron", "@daily", "--every", "5m"], "error: timing: give one of --cron, --every and --at"),
        ([], "error: timing: give one of --cron EXPR, --every DURATION and --at INSTANT"),
        (["--every", "5m", "--time-zone", "UTC"], "error: timing: --time-zone, --gap and --fold belong to --cron"),
        (["--cron", "@daily", "--anchor", "2026-01-01T00:00:00Z"], "error: timing: --anchor belongs to --every"),
        (["--every", "10ms"], "error: every: must be from 1 s"),
        (
            ["--cron", "@daily", "--start", "2026-01-02T00:00:00Z", "--end", "2026-01-01T00:00:00Z"],
            "error: end_at: must lie after start_at",
        ),
    ],
)
def test_other_refused_input_exits_2_as_well(options: list[str], reason: str) -> None:
    code, stdout, stderr = preview(*options)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(reason)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--after", "tomorrow", "'tomorrow' is not an instant; write it with an offset"),
        ("--every", "5", "'5' is not a duration; write it as 90s"),
        ("--count", "0", "--count"),
        ("--count", "1001", "--count"),
        ("--gap", "maybe", "--gap"),
        ("--output", "yaml", "--output"),
    ],
)
def test_bad_options_exit_2_naming_the_option(option: str, value: str, reason: str) -> None:
    code, stdout, stderr = preview("--cron", "@daily", option, value)
    assert (code, stdout) == (2, "")
    assert option in stderr
    assert reason in stderr


def test_the_table_shows_words_notes_and_both_clocks_within_80_columns() -> None:
    code, stdout, _ = preview("--cron", "0 0 13 * 5", "--time-zone", "America/Argentina/Buenos_Aires")
    assert code == 0
    assert "Note: day-of-month" in stdout
    assert "IN America/Argentina/Buenos_Aires" in stdout
    assert max(map(len, stdout.splitlines())) <= 80
