"""`shardctl schedules import` against a server that keeps schedules by their names."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from shardwheel.v1.schedule_pb2 import OVERLAP_ALLOW, ScheduleSpec
from shardwheel.v1.schedule_service_pb2 import EnsureSchedulesRequest, EnsureSchedulesResponse
from tests.integration.shardctl.conftest import Ran, Shardctl
from tests.integration.shardctl.scripted_server import Answer, Refusal, ScriptedServer

TEXT = """\
# m h dom mon dow user command
MAILTO=root
17 *  * * *  root  cd / && run-parts --report /etc/cron.hourly
@daily       root  mail -s report boss%hello
@reboot      root  /usr/local/bin/on-boot
"""


@dataclass(slots=True)
class Kept:
    """Schedules by name, changed by EnsureSchedules as the API says."""

    specs: dict[str, ScheduleSpec] = field(default_factory=dict)

    def ensure(self, request: Message) -> Answer:
        assert isinstance(request, EnsureSchedulesRequest)
        specs = dict(self.specs)
        response = EnsureSchedulesResponse()
        for named in request.schedules:
            old = specs.get(named.name)
            change = (
                EnsureSchedulesResponse.CREATED
                if old is None
                else EnsureSchedulesResponse.UNCHANGED
                if old == named.spec
                else EnsureSchedulesResponse.UPDATED
            )
            specs[named.name] = named.spec
            response.results.add(name=named.name, change=change)
        wanted = {named.name for named in request.schedules}
        for name in sorted(specs):
            if request.prune_prefix and name.startswith(request.prune_prefix) and name not in wanted:
                del specs[name]
                response.results.add(name=name, change=EnsureSchedulesResponse.DELETED)
        if not request.dry_run:
            self.specs = specs
        return response


@pytest.fixture
def kept(server: ScriptedServer) -> Kept:
    kept = Kept()
    server.answer_with("EnsureSchedules", kept.ensure)
    return kept


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "crontab"
    file.write_text(TEXT)
    return file


def changes(ran: Ran) -> dict[str, str]:
    return {schedule["name"]: schedule["change"] for schedule in ran.json["schedules"]}


def test_an_import_stores_each_entry_and_a_second_one_changes_nothing(
    kept: Kept, shardctl: Shardctl, file: Path
) -> None:
    arguments = ("schedules", "import", str(file), "--time-zone", "Europe/Paris", "-o", "json")
    first = shardctl(*arguments)
    assert first.code == 0
    assert set(changes(first).values()) == {"created"}
    assert set(kept.specs) == set(changes(first))
    assert len(kept.specs) == 2
    spec = next(spec for name, spec in kept.specs.items() if "run-parts" in name)
    assert (spec.cron.expression, spec.cron.time_zone) == ("17 * * * *", "Europe/Paris")
    assert (spec.job.handler, spec.job.retry.max_attempts) == ("shell", 1)
    assert json.loads(spec.job.payload)["user"] == "root"
    second = shardctl(*arguments)
    assert (second.code, set(changes(second).values())) == (0, {"unchanged"})


def test_reboot_entries_are_listed_as_skipped(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    ran = shardctl("schedules", "import", str(file), "-o", "json")
    assert f"note: {file}:5: @reboot" in ran.stderr
    (skipped,) = ran.json["skipped"]
    assert (skipped["file"], skipped["line"]) == (str(file), 5)


def test_a_dry_run_stores_nothing_and_shows_the_next_three_firings(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    ran = shardctl("schedules", "import", str(file), "--dry-run", "--time-zone", "Europe/Paris")
    assert (ran.code, kept.specs) == (0, {})
    assert ran.widest <= 80
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["CHANGE", "NAME", "CRON", "NEXT"]
    assert [line[:6] for line in lines[1:7]] == ["create", " " * 6, " " * 6] * 2
    assert all(line.endswith("Z") for line in lines[1:7])
    assert "dry run, nothing was stored: 2 to create" in ran.stdout
    assert "time zone: Europe/Paris (--time-zone)" in ran.stdout


def test_a_dry_run_needs_no_server(shardctl: Shardctl, file: Path) -> None:
    ran = shardctl("schedules", "import", str(file), "--dry-run", "--address", "127.0.0.1:1", "-o", "json")
    assert ran.code == 0
    assert set(changes(ran).values()) == {None}
    assert all(len(schedule["next_firings"]) == 3 for schedule in ran.json["schedules"])
    assert "note: no server at 127.0.0.1:1" in ran.stderr
    real = shardctl("schedules", "import", str(file), "--address", "127.0.0.1:1")
    assert real.code == 1
    assert "error: cannot reach a server" in real.stderr


def test_nothing_is_stored_if_an_entry_is_bad(
    server: ScriptedServer, kept: Kept, shardctl: Shardctl, file: Path
) -> None:
    file.write_text(TEXT + "60 * * * * root true\nroot true\n")
    ran = shardctl("schedules", "import", str(file))
    assert (ran.code, ran.stdout, kept.specs, server.calls) == (2, "", {}, [])
    errors = [line for line in ran.stderr.splitlines() if not line.startswith("note:")]
    assert errors[0].startswith(f"{file}:6: cron '60 * * * *': minute: 60 is outside 0-59")
    assert errors[1].startswith(f"{file}:7: ")
    assert errors[2:] == [
        "error: 2 bad entries; nothing was stored",
        "Correct the lines, or leave them out with --skip-bad.",
    ]


def test_bad_entries_can_be_left_out_and_are_listed(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    file.write_text(TEXT + "60 * * * * root true\n")
    ran = shardctl("schedules", "import", str(file), "--skip-bad", "-o", "json")
    assert (ran.code, len(kept.specs)) == (0, 2)
    assert f"skipped: {file}:6: cron '60 * * * *'" in ran.stderr
    assert [remark["line"] for remark in ran.json["skipped"]] == [5, 6]


def test_a_dry_run_with_a_bad_entry_shows_the_good_ones_and_exits_2(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    file.write_text(TEXT + "60 * * * * root true\n")
    ran = shardctl("schedules", "import", str(file), "--dry-run")
    assert ran.code == 2
    assert "run-parts" in ran.stdout
    assert "error: 1 bad entry\n" in ran.stderr


def test_vanished_entries_are_deleted_only_with_prune(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    kept.specs["crontab2:other"] = ScheduleSpec()
    assert shardctl("schedules", "import", str(file)).code == 0
    file.write_text(TEXT.replace("@daily ", "#"))
    assert shardctl("schedules", "import", str(file)).code == 0
    assert len(kept.specs) == 3
    dry = shardctl("schedules", "import", str(file), "--prune", "--dry-run")
    assert "delete     crontab:mail-s-report-boss-hello" in dry.stdout
    assert "dry run, nothing was stored: 1 unchanged, 1 to delete" in dry.stdout
    assert len(kept.specs) == 3
    ran = shardctl("schedules", "import", str(file), "--prune", "-o", "json")
    assert (ran.code, ran.json["deleted"]) == (0, ["crontab:mail-s-report-boss-hello"])
    assert set(kept.specs) == {*changes(ran), "crontab2:other"}
    file.write_text("")
    assert shardctl("schedules", "import", str(file), "--prune").code == 0
    assert list(kept.specs) == ["crontab2:other"]


def test_prune_refuses_to_guess_what_a_bad_entry_was(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    file.write_text("bad\n")
    ran = shardctl("schedules", "import", str(file), "--prune", "--skip-bad")
    assert (ran.code, kept.specs) == (2, {})
    assert "With --prune, what is skipped would be deleted" in ran.stderr


def test_options_reach_every_schedule(kept: Kept, shardctl: Shardctl, file: Path) -> None:
    ran = shardctl(
        *("schedules", "import", str(file), "--handler", "sh", "--prefix", "web1/", "--max-attempts", "3"),
        *("--attempt-timeout", "5m", "--overlap", "allow", "--user-crontab"),
    )
    assert ran.code == 0
    assert all(name.startswith("web1/crontab:root-") for name in kept.specs)
    for spec in kept.specs.values():
        assert (spec.job.handler, spec.overlap, spec.job.retry.max_attempts) == ("sh", OVERLAP_ALLOW, 3)
        assert spec.job.timeouts.attempt_timeout.seconds == 300
        assert json.loads(spec.job.payload)["user"] is None


def test_a_zone_that_does_not_exist_is_refused(server: ScriptedServer, shardctl: Shardctl, file: Path) -> None:
    ran = shardctl("schedules", "import", str(file), "--time-zone", "Mars/Base")
    assert (ran.code, server.calls) == (2, [])
    assert ran.stderr.startswith("error: --time-zone: time_zone: is not an IANA time zone")


def test_several_calls_are_all_checked_before_one_stores(
    server: ScriptedServer, kept: Kept, shardctl: Shardctl, file: Path
) -> None:
    file.write_text("".join(f"{number % 60} * * * * true {number}\n" for number in range(1500)))
    ran = shardctl("schedules", "import", str(file), "-o", "json")
    assert (ran.code, len(kept.specs)) == (0, 1500)
    requests = server.requests(EnsureSchedulesRequest)
    assert [(len(request.schedules), request.dry_run) for request in requests] == [
        (1000, True),
        (500, True),
        (1000, False),
        (500, False),
    ]
    refused = shardctl("schedules", "import", str(file), "--prune")
    assert refused.code == 2
    assert "1500 schedules begin with 'crontab:'; at most 1000" in refused.stderr


def test_what_the_server_refuses_is_named_by_line_and_can_be_left_out(
    server: ScriptedServer, kept: Kept, shardctl: Shardctl, file: Path
) -> None:
    def refuse_mail(request: Message) -> Answer:
        assert isinstance(request, EnsureSchedulesRequest)
        for number, named in enumerate(request.schedules):
            if "mail" in named.name:
                violation = (f"schedules[{number}].spec.job.payload", "has too many bytes")
                return Refusal(grpc.StatusCode.INVALID_ARGUMENT, "refused", violation)
        return kept.ensure(request)

    server.answer_with("EnsureSchedules", refuse_mail)
    ran = shardctl("schedules", "import", str(file))
    assert (ran.code, kept.specs) == (2, {})
    assert f"{file}:4: spec.job.payload: has too many bytes\n" in ran.stderr
    ran = shardctl("schedules", "import", str(file), "--skip-bad")
    assert (ran.code, len(kept.specs)) == (0, 1)
    assert f"skipped: {file}:4: spec.job.payload: has too many bytes\n" in ran.stderr


def test_stdin_is_a_crontab(kept: Kept, shardctl: Shardctl) -> None:
    ran = shardctl("schedules", "import", "-", stdin=b"*/5 * * * * /usr/bin/poll\n")
    assert ran.code == 0
    assert list(kept.specs) == ["crontab:usr-bin-poll"]
    missing = shardctl("schedules", "import", "no/such/file")
    assert (missing.code, missing.stderr) == (2, "error: FILE: cannot read no/such/file: No such file or directory\n")
