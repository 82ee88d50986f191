"""From crontab files to schedules, without a server."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shard_manager.shardctl.ensure import MOST_SCHEDULES, portions
from shard_manager.shardctl.failure import RefusedInputError
from shard_manager.shardctl.importer import Defaults, ImportedFile, Reading, find_files, read_files
from shardwheel.v1.schedule_pb2 import OVERLAP_ALLOW, ScheduleSpec

SYSTEM = b"""# /etc/crontab
SHELL=/bin/bash
PATH=/usr/bin
17 * * * *  root  cd / && run-parts --report /etc/cron.hourly
@daily      www-data  mail -s report boss%hello%world
CRON_TZ=Europe/Paris
30 2 * * *  backup  /usr/local/bin/backup --all
@reboot     root  /usr/local/bin/on-boot
"""


def defaults(**changed: object) -> Defaults:
    spec = ScheduleSpec(overlap=OVERLAP_ALLOW)
    spec.job.handler = "shell"
    spec.job.retry.max_attempts = 1
    values: dict[str, object] = {"time_zone": "America/Lima", "system": None, "name_prefix": "", "spec": spec}
    return Defaults(**{**values, **changed})  # type: ignore[arg-type]


def read(text: bytes, path: str = "/etc/crontab", **changed: object) -> Reading:
    return read_files([ImportedFile(path=path, text=text)], defaults(**changed))


def test_entries_become_schedules_with_their_payload_and_zone() -> None:
    reading = read(SYSTEM)
    hourly, daily, backup = (planned.schedule for planned in reading.planned)
    assert json.loads(hourly.spec.job.payload) == {
        "command": "cd / && run-parts --report /etc/cron.hourly",
        "stdin": None,
        "environment": {"SHELL": "/bin/bash", "PATH": "/usr/bin"},
        "user": "root",
        "shell": "/bin/bash",
    }
    assert json.loads(daily.spec.job.payload)["stdin"] == "hello\nworld\n"
    assert (hourly.spec.cron.expression, hourly.spec.cron.time_zone) == ("17 * * * *", "America/Lima")
    assert (daily.spec.cron.expression, backup.spec.cron.time_zone) == ("@daily", "Europe/Paris")
    assert (hourly.spec.overlap, hourly.spec.job.handler, hourly.spec.job.retry.max_attempts) == (
        OVERLAP_ALLOW,
        "shell",
        1,
    )
    assert hourly.spec.job.content_type == "application/json"
    assert dict(hourly.spec.job.labels) == {"crontab": "/etc/crontab"}
    assert reading.bad == []


def test_a_reboot_entry_is_skipped_with_its_line() -> None:
    (remark,) = read(SYSTEM).skipped
    assert str(remark).startswith("/etc/crontab:8: @reboot")


def test_names_stay_the_same_when_lines_move_and_times_change() -> None:
    first = {planned.schedule.name for planned in read(SYSTEM).planned}
    moved = SYSTEM.replace(b"17 * * * *", b"# a comment\n\n\n18 1 * * *")
    assert {planned.schedule.name for planned in read(moved).planned} == first
    assert len(first) == 3


def test_names_of_several_files_do_not_collide() -> None:
    entry = b"* * * * * true\n"
    files = [ImportedFile(path=path, text=entry * 2) for path in ("a/jobs", "b/jobs")]
    reading = read_files(files, defaults(name_prefix="web1/"))
    names = [planned.schedule.name for planned in reading.planned]
    assert names == ["web1/jobs:true", "web1/jobs:true-2", "web1/jobs:true-3", "web1/jobs:true-4"]
    assert reading.prefixes == {"a/jobs": "web1/jobs:", "b/jobs": "web1/jobs:"}


def test_bad_lines_have_their_number_field_and_reason() -> None:
    reading = read(b"* * * * * true\n60 * * * * true\nCRON_TZ=Nowhere\n* * * * * x\nonly four * * *\n", "mine")
    assert [str(remark).partition(": ")[0] for remark in reading.bad] == ["mine:2", "mine:3", "mine:4", "mine:5"]
    assert "cron '60 * * * *': minute: 60 is outside 0-59" in str(reading.bad[0])
    assert "time_zone 'Nowhere'" in str(reading.bad[1])
    assert len(reading.planned) == 1


def test_the_form_can_be_forced() -> None:
    line = b"* * * * * root true\n"
    assert read(line, "mine", system=True).planned[0].user == "root"
    assert read(line, "mine", system=False).planned[0].command == "root true"
    assert read(line, "/etc/cron.d/mine").planned[0].user == "root"


def test_tz_moves_no_times_and_says_so() -> None:
    reading = read(b"TZ=Europe/Paris\n0 3 * * * true\n", "mine")
    assert reading.planned[0].time_zone == "America/Lima"
    assert [str(note) for note in reading.notes] == [
        "mine:2: TZ is for the command and does not move its times; CRON_TZ or --time-zone does"
    ]


def test_files_that_cron_passes_over_are_skipped_with_a_note() -> None:
    reading = read(b"* * * * * root true\n", "/etc/cron.d/php.dpkg-old")
    assert reading.planned == []
    assert "cron does not read a file of this name" in str(reading.skipped[0])


def test_the_next_three_firings_are_known_without_a_server() -> None:
    backup = read(SYSTEM).planned[2]
    assert backup.next_firings(datetime(2026, 3, 28, 12, tzinfo=UTC)) == [
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),  # 02:30 does not exist that day: the first instant after the gap
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        datetime(2026, 3, 31, 0, 30, tzinfo=UTC),
    ]


def test_directories_and_stdin_are_read(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("* * * * * b\n")
    (tmp_path / "a").write_text("* * * * * a\n")
    (tmp_path / "folder").mkdir()
    files = list(find_files([str(tmp_path), "-"], io.BytesIO(b"* * * * * c\n")))
    assert [(Path(file.path).name, file.text) for file in files] == [
        ("a", b"* * * * * a\n"),
        ("b", b"* * * * * b\n"),
        ("-", b"* * * * * c\n"),
    ]
    with pytest.raises(RefusedInputError, match=r"cannot read .*missing: No such file"):
        list(find_files([str(tmp_path / "missing")], io.BytesIO()))
    stdin = read_files(files[2:], defaults()).planned[0].schedule
    assert stdin.name == "crontab:c"
    assert dict(stdin.spec.job.labels) == {}


def test_many_entries_go_in_several_calls_unless_they_are_pruned() -> None:
    reading = read(b"* * * * * true\n" * (2 * MOST_SCHEDULES + 1), "mine")
    parts = portions(reading, prune=False)
    assert [len(part.planned) for part in parts] == [MOST_SCHEDULES, MOST_SCHEDULES, 1]
    assert {part.prune_prefix for part in parts} == {""}
    with pytest.raises(RefusedInputError, match=r"--prune: 2001 schedules begin with 'mine:'; at most 1000"):
        portions(reading, prune=True)


def test_large_entries_are_spread_by_their_size() -> None:
    reading = read((b"* * * * * " + b"x" * 60_000 + b"\n") * 17, "mine")
    big = Reading(planned=reading.planned * 10, prefixes=reading.prefixes)
    parts = portions(big, prune=False)
    assert len(parts) > 1
    assert sum(len(part.planned) for part in parts) == 170
    assert all(sum(each.schedule.ByteSize() for each in part.planned) < 4 * 1024 * 1024 for part in parts)


def test_pruning_compares_each_prefix_in_one_call_even_if_nothing_is_left() -> None:
    files = [ImportedFile(path=path, text=text) for path, text in (("a", b"* * * * * true\n"), ("b", b""))]
    parts = portions(read_files(files, defaults()), prune=True)
    assert [(part.prune_prefix, len(part.planned)) for part in parts] == [("a:", 1), ("b:", 0)]
