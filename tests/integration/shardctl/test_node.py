"""`shardctl` as a process against a whole node: real API, real database, a worker where one is needed."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from server.app import Node
from tests.integration.shardctl.conftest import VARIABLES, Ran
from tests.support.nodes import running_node
from tests.support.raw_worker import RawWorker

Run = Callable[..., Coroutine[None, None, Ran]]

CRONTAB = """\
CRON_TZ=Europe/Paris
17 *  * * *  root  cd / && run-parts --report /etc/cron.hourly
@daily       root  mail -s report boss%hello
@reboot      root  /usr/local/bin/on-boot
"""


@pytest.fixture
async def node(database: str, tmp_path: Path) -> AsyncIterator[Node]:
    """A node that owns every shard."""
    async with running_node(database, tmp_path / "data") as node:
        yield node


@pytest.fixture
def shardctl(node: Node) -> Run:
    """Runs a command against the node, in a process of its own: the node needs this one's event loop."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}

    async def run(*arguments: str, stdin: bytes = b"") -> Ran:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shard_manager.shardctl", "--address", node.address, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(stdin), timeout=60)
        assert process.returncode is not None
        assert b"Traceback" not in stderr, stderr.decode()
        ran = Ran(process.returncode, stdout.decode(), stderr.decode())
        assert ran.widest <= 80 or stdout.startswith(b"{")
        return ran

    return run


async def test_a_job_from_submit_to_its_result(node: Node, shardctl: Run) -> None:
    async with RawWorker(node.address, handlers={"greet": 1}) as worker:
        waiting = asyncio.create_task(shardctl("jobs", "submit", "greet", '{"name": "you"}', "--wait", "-o", "json"))
        worker.complete(await worker.next_jobs(1))
        ran = await waiting
        assert (ran.code, ran.stderr) == (0, "")
        assert ran.json["created"] is True
        job = ran.json["job"]
        assert (job["state"], job["result"], job["payload"]) == ("completed", "done", '{"name": "you"}')
        assert [worker["worker"] for worker in (await shardctl("workers", "list", "-o", "json")).json["workers"]] == [
            "raw"
        ]
    listed = await shardctl("jobs", "list", "--state", "completed", "--handler", "greet", "--since", "1h", "-o", "json")
    assert [each["id"] for each in listed.json["jobs"]] == [job["id"]]
    shown = await shardctl("jobs", "get", str(job["id"]))
    assert "Result (text/plain):\ndone" in shown.stdout


async def test_a_job_is_cancelled_and_made_pending_again(shardctl: Run) -> None:
    submitted = await shardctl("jobs", "submit", "greet", "--in", "1h", "--dedupe-key", "d", "-o", "json")
    job_id = str(submitted.json["job"]["id"])
    again = await shardctl("jobs", "submit", "greet", "other", "--in", "1h", "--dedupe-key", "d", "-o", "json")
    assert (again.json["job"]["id"], again.json["created"], again.json["differs"]) == (int(job_id), False, True)
    assert "waits because  not due" in (await shardctl("jobs", "get", job_id)).stdout
    assert (await shardctl("jobs", "cancel", job_id, "--reason", "typo")).stdout == f"job {job_id} is cancelled\n"
    refused = await shardctl("jobs", "cancel", job_id)
    assert (refused.code, "FAILED_PRECONDITION" in refused.stderr) == (1, True)
    waited = await shardctl("jobs", "wait", job_id, "-o", "json")
    assert (waited.code, waited.json["state"]) == (1, "cancelled")
    assert (await shardctl("jobs", "retry", job_id, "-o", "json")).json["state"] == "pending"
    late = await shardctl("jobs", "wait", job_id, "--timeout", "300ms")
    assert (late.code, "is still pending after 300ms" in late.stderr) == (1, True)


async def test_refused_input_names_the_field_and_exits_2(shardctl: Run) -> None:
    ran = await shardctl("jobs", "submit", "bad name", "--priority", "9")
    assert (ran.code, ran.stdout) == (2, "")
    assert "error: job.handler: " in ran.stderr
    assert "error: job.priority: " in ran.stderr
    missing = await shardctl("jobs", "get", "123456789")
    assert missing.code == 1
    assert missing.stderr.startswith("error: not found: ")
    cron = await shardctl("schedules", "create", "a", "h", "--cron", "60 * * * *")
    assert (cron.code, "minute: 60 is outside 0-59" in cron.stderr) == (2, True)
    namespace = await shardctl("jobs", "list", "--namespace", "nowhere")
    assert (namespace.code, "nowhere" in namespace.stderr) == (1, True)


async def test_a_file_of_jobs_and_what_is_bad_in_it(shardctl: Run) -> None:
    lines = [{"handler": "h", "payload": number, "delay": "1h", "dedupe_key": f"k{number}"} for number in range(2500)]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    first = await shardctl("jobs", "submit", "--file", "-", "-o", "json", stdin=text)
    assert (first.code, first.json["created"], len(set(first.json["job_ids"]))) == (0, 2500, 2500)
    second = await shardctl("jobs", "submit", "--file", "-", "-o", "json", stdin=text)
    assert (second.json["created"], second.json["existing"], second.json["differing"]) == (0, 2500, 0)
    assert second.json["job_ids"] == first.json["job_ids"]
    bad = await shardctl(
        "jobs", "submit", "--file", "-", stdin=b'{"handler": "h"}\n\n{"handler": "h", "priority": 7}\n'
    )
    assert bad.code == 2
    assert bad.stderr.startswith("-:3: priority: ")
    assert bad.stderr.endswith("Nothing was stored.\n")


async def test_the_life_of_a_schedule(shardctl: Run) -> None:
    created = await shardctl(
        *("schedules", "create", "nightly", "report.build", '{"day": 1}', "--cron", "30 2 * * *"),
        *("--time-zone", "Europe/Paris", "--label", "team=data", "-o", "json"),
    )
    assert (created.code, created.stderr) == (0, "")
    assert created.json["spec"]["cron"]["time_zone"] == "Europe/Paris"
    assert created.json["spec"]["overlap"] == "skip"
    taken = await shardctl("schedules", "create", "nightly", "report.build", "--cron", "@daily")
    assert (taken.code, "ALREADY_EXISTS" in taken.stderr) == (1, True)
    updated = await shardctl(
        *("schedules", "update", "nightly", "--time-zone", "America/Lima", "--max-attempts", "2"),
        *("--overlap", "allow", "--clear", "job.labels", "-o", "json"),
    )
    assert (updated.code, updated.stderr) == (0, "")
    spec = updated.json["spec"]
    assert (spec["cron"]["expression"], spec["cron"]["time_zone"]) == ("30 2 * * *", "America/Lima")
    assert (spec["job"]["retry"]["max_attempts"], spec["job"]["labels"], spec["overlap"]) == (2, {}, "allow")
    assert spec["job"]["payload"] == '{"day": 1}'
    changed = await shardctl("schedules", "update", "nightly", "--every", "6h", "-o", "json")
    assert (changed.json["spec"]["cron"], changed.json["spec"]["interval"]["every"]) == (None, 21600)
    assert (await shardctl("schedules", "pause", "nightly", "--note", "n", "-o", "json")).json["paused"] is True
    triggered = await shardctl("schedules", "trigger", "nightly", "-o", "json")
    listed = await shardctl("jobs", "list", "--schedule", "nightly", "-o", "json")
    assert [job["id"] for job in listed.json["jobs"]] == [triggered.json["job"]["id"]]
    preview = await shardctl("schedules", "preview", "nightly", "--count", "2", "-o", "json")
    assert len(preview.json["firings"]) == 2
    assert "it is paused" in preview.json["notes"][-1]
    assert "every 6h" in (await shardctl("schedules", "list")).stdout
    assert (await shardctl("schedules", "resume", "nightly", "-o", "json")).json["paused"] is False
    assert "report.build" in (await shardctl("schedules", "get", "nightly")).stdout
    assert (await shardctl("schedules", "delete", "nightly")).code == 0
    assert (await shardctl("schedules", "get", "nightly")).code == 1


async def test_previews_of_the_node_and_of_the_command_agree(shardctl: Run) -> None:
    timing = ("--cron", "30 2 13 * 5", "--time-zone", "America/New_York", "--fold", "both")
    await shardctl("schedules", "create", "stored", "h", *timing)
    after = ("--after", "2026-03-01T00:00:00Z", "--count", "20", "-o", "json")
    assert (await shardctl("schedules", "preview", "stored", *after)).json == (
        await shardctl("schedules", "preview", *timing, *after)
    ).json


async def test_a_crontab_is_imported_twice_and_pruned(shardctl: Run, tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text(CRONTAB)
    arguments = ("schedules", "import", "--system", str(file))
    dry = await shardctl(*arguments, "--dry-run")
    assert (dry.code, "dry run, nothing was stored: 2 to create" in dry.stdout) == (0, True)
    assert (await shardctl("schedules", "list", "-o", "json")).json["schedules"] == []
    first = await shardctl(*arguments, "-o", "json")
    assert [each["change"] for each in first.json["schedules"]] == ["created", "created"]
    second = await shardctl(*arguments, "-o", "json")
    assert [each["change"] for each in second.json["schedules"]] == ["unchanged", "unchanged"]
    stored = (await shardctl("schedules", "list", "--handler", "shell", "-o", "json")).json["schedules"]
    assert {each["name"] for each in stored} == {each["name"] for each in first.json["schedules"]}
    assert {each["spec"]["cron"]["time_zone"] for each in stored} == {"Europe/Paris"}
    by_name = {each["name"]: each["next_firings"][0] for each in second.json["schedules"]}
    assert {each["name"]: each["next_fire_at"] for each in stored} == by_name
    file.write_text(CRONTAB.replace("17 *", "18 *").replace("@daily", "# @daily"))
    third = await shardctl(*arguments, "--prune", "-o", "json")
    assert [each["change"] for each in third.json["schedules"]] == ["updated"]
    assert len(third.json["deleted"]) == 1
    file.write_text(CRONTAB + "60 * * * * root true\n")
    bad = await shardctl(*arguments)
    assert (bad.code, f"{file}:5: cron '60 * * * *': minute" in bad.stderr) == (2, True)
    assert len((await shardctl("schedules", "list", "-o", "json")).json["schedules"]) == 1


CRONJOB = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: sales}
spec:
  schedule: "0 6 * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  suspend: %s
  jobTemplate: {spec: {}}
"""


async def test_cronjobs_are_imported_and_paused_as_they_say(shardctl: Run, tmp_path: Path) -> None:
    file, name = tmp_path / "jobs.yaml", "jobs.yaml:sales/report"
    bad = (CRONJOB % "false").replace("report", "other").replace("Forbid", "Never")
    file.write_text(CRONJOB % "true" + "---\n" + bad)
    refused = await shardctl("schedules", "import", str(file))
    assert (refused.code, f"{file}:17: spec.concurrencyPolicy: has to be" in refused.stderr) == (2, True)
    assert (await shardctl("schedules", "list", "-o", "json")).json["schedules"] == []
    skipped = await shardctl("schedules", "import", str(file), "--skip-bad", "-o", "json")
    assert [(one["name"], one["change"], one["time_zone"]) for one in skipped.json["schedules"]] == [
        (name, "created", "Europe/Berlin")
    ]
    assert (await shardctl("schedules", "get", name, "-o", "json")).json["paused"] is True
    # Whom somebody has resumed is paused again as long as the manifest says so, and not resumed by one that does not.
    for suspend, paused in (("false", False), ("true", True), ("false", True)):
        if suspend == "false" and not paused:
            await shardctl("schedules", "resume", name)
        file.write_text(CRONJOB % suspend)
        assert (await shardctl("schedules", "import", str(file))).code == 0
        assert (await shardctl("schedules", "get", name, "-o", "json")).json["paused"] is paused


async def test_more_than_a_thousand_entries_are_imported(shardctl: Run) -> None:
    text = "".join(f"{number % 60} {number % 24} * * * true {number}\n" for number in range(1200)).encode()
    ran = await shardctl("schedules", "import", "-", "-o", "json", stdin=text)
    assert (ran.code, len(ran.json["schedules"])) == (0, 1200)
    listed = await shardctl("schedules", "list", "--limit", "5000", "-o", "json")
    assert (len(listed.json["schedules"]), listed.json["more"]) == (1200, False)


async def test_status_handlers_and_namespaces(node: Node, shardctl: Run) -> None:
    async with RawWorker(node.address, handlers={"greet": 3}):
        status = await shardctl("status")
        assert (status.code, status.stderr) == (0, "")
        assert "answered by  node-a" in status.stdout
        assert "in transition" not in status.stdout
        handlers = (await shardctl("handlers", "list", "-o", "json")).json["handlers"]
        assert [(each["handler"], each["worker_count"], each["slot_count"]) for each in handlers] == [("greet", 1, 3)]
        assert (await shardctl("handlers", "pause", "greet", "--note", "n", "-o", "json")).json["paused"] is True
        assert (await shardctl("handlers", "resume", "greet", "-o", "json")).json["paused"] is False
    created = await shardctl("namespaces", "create", "tenant", "--max-attempts", "2", "-o", "json")
    assert created.json["retry"]["max_attempts"] == 2
    names = [each["namespace"] for each in (await shardctl("namespaces", "list", "-o", "json")).json["namespaces"]]
    assert names == ["default", "tenant"]
