"""From manifests of CronJobs to schedules, without a server."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_manager.shardctl.cronjob import CronJob, CronJobProblem, looks_like_manifests, parse_cronjobs
from shard_manager.shardctl.importer import Defaults, ImportedFile, Reading, read_files
from shardwheel.v1.schedule_pb2 import OVERLAP_ALLOW, OVERLAP_BUFFER_ONE, OVERLAP_SKIP, ScheduleSpec

MANIFESTS = b"""\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: report
  namespace: sales
spec:
  schedule: "30 6 * * MON-FRI"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  suspend: true
  jobTemplate:
    spec:
      template:
        spec:
          containers:
            - name: report
              image: report:1
              args: [--since, 2026-01-01]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: clean}
spec:
  schedule: "@hourly"
  jobTemplate: {spec: {}}
"""


def manifest(**changed: object) -> dict[str, object]:
    spec: dict[str, object] = {"schedule": "0 * * * *", "jobTemplate": {"spec": {}}}
    spec.update({name: value for name, value in changed.items() if name not in ("apiVersion", "kind", "metadata")})
    return {
        "apiVersion": changed.get("apiVersion", "batch/v1"),
        "kind": changed.get("kind", "CronJob"),
        "metadata": changed.get("metadata", {"name": "one"}),
        "spec": spec,
    }


def read(text: bytes, path: str = "deploy/jobs.yaml", **changed: object) -> Reading:
    spec = ScheduleSpec()
    spec.job.handler = "shell"
    spec.job.retry.max_attempts = 1
    values: dict[str, object] = {"time_zone": "America/Lima", "system": None, "name_prefix": "", "spec": spec}
    return read_files([ImportedFile(path=path, text=text)], Defaults(**{**values, **changed}))  # type: ignore[arg-type]


def test_cronjobs_become_schedules() -> None:
    reading = read(MANIFESTS)
    report, clean = reading.planned
    assert [planned.schedule.name for planned in reading.planned] == ["jobs.yaml:sales/report", "jobs.yaml:clean"]
    spec = report.schedule.spec
    assert (spec.cron.expression, spec.cron.time_zone) == ("30 6 * * MON-FRI", "Europe/Berlin")
    assert (spec.overlap, spec.catch_up_window.ToTimedelta()) == (OVERLAP_SKIP, timedelta(minutes=10))
    assert (report.schedule.paused, clean.schedule.paused) == (True, False)
    assert (spec.job.handler, spec.job.retry.max_attempts) == ("kubernetes.job", 1)
    payload = json.loads(spec.job.payload)
    assert (payload["name"], payload["namespace"]) == ("report", "sales")
    # Dates are texts in a manifest.
    assert payload["spec"]["template"]["spec"]["containers"][0]["args"] == ["--since", "2026-01-01"]
    assert (clean.schedule.spec.overlap, clean.schedule.spec.HasField("catch_up_window")) == (OVERLAP_ALLOW, False)
    assert json.loads(clean.schedule.spec.job.payload)["namespace"] == "default"
    assert reading.bad == []
    assert [str(remark) for remark in reading.skipped] == [
        "deploy/jobs.yaml:2: kind 'ConfigMap' is no CronJob, skipped"
    ]


def test_the_zone_is_the_clusters_not_this_machines() -> None:
    text = json.dumps(manifest()).encode()
    [planned] = read(text).planned
    assert (planned.time_zone, planned.zone_from) == ("UTC", "as in most clusters")
    [planned] = read(text, cronjob_time_zone="Asia/Tokyo").planned
    assert (planned.time_zone, planned.zone_from) == ("Asia/Tokyo", "")


def test_what_the_command_says_wins() -> None:
    spec = ScheduleSpec(overlap=OVERLAP_BUFFER_ONE)
    spec.catch_up_window.FromTimedelta(timedelta(hours=1))
    text = json.dumps(manifest(concurrencyPolicy="Replace", startingDeadlineSeconds=5)).encode()
    [planned] = read(text, spec=spec, cronjob_handler="mine").planned
    found = planned.schedule.spec
    assert (found.overlap, found.catch_up_window.ToTimedelta()) == (OVERLAP_BUFFER_ONE, timedelta(hours=1))
    assert found.job.handler == "mine"


def test_lists_and_several_documents_of_json() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [manifest(), manifest(metadata={"name": "two"}), 3]}
    reading = read(json.dumps(listed).encode(), "jobs.json")
    assert [planned.schedule.name for planned in reading.planned] == ["jobs.json:one", "jobs.json:two"]
    assert [remark.text for remark in reading.bad] == ["is no manifest"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schedule": "61 * * * *"}, "spec.schedule: "),
        ({"schedule": 5}, "spec.schedule: has to be a text (got '5')"),
        ({"schedule": "CRON_TZ=UTC 0 * * * *"}, "spec.schedule: names a zone; say it in timeZone"),
        ({"timeZone": "Mars/Olympus"}, "spec.timeZone: "),
        ({"concurrencyPolicy": "forbid"}, "spec.concurrencyPolicy: has to be Allow or Forbid or Replace"),
        ({"concurrencyPolicy": "Replace"}, "spec.concurrencyPolicy: Replace is not served; write Forbid"),
        ({"startingDeadlineSeconds": -1}, "spec.startingDeadlineSeconds: has to be a whole number from 0"),
        ({"startingDeadlineSeconds": True}, "spec.startingDeadlineSeconds: has to be a whole number from 0"),
        ({"suspend": "yes"}, "spec.suspend: has to be true or false (got 'yes')"),
        ({"jobTemplate": None}, "spec.jobTemplate.spec: is required"),
        ({"metadata": {"name": "A_b"}}, "metadata.name: takes lower-case letters"),
        ({"metadata": {}}, "metadata.name: is required"),
        ({"apiVersion": "batch/v9"}, "apiVersion: has to be batch/v1 or batch/v1beta1"),
    ],
)
def test_bad_fields_are_named(changed: dict[str, object], said: str) -> None:
    reading = read(json.dumps(manifest(**changed)).encode())
    assert reading.planned == []
    [remark] = reading.bad
    assert remark.text.startswith(said)


def test_problems_have_the_line_of_their_field_and_the_rest_is_read() -> None:
    text = MANIFESTS.replace(b"Forbid", b"Never").replace(b'"@hourly"', b'"@hourly"\n  suspend: maybe')
    reading = read(text)
    assert [remark.line for remark in reading.bad] == [13, 30]
    broken = b"apiVersion: batch/v1\nkind: [\n"
    [remark] = read(MANIFESTS + b"---\n" + broken).bad
    assert (remark.line > 30, remark.text.startswith("is not YAML: ")) == (True, True)
    assert len(read(MANIFESTS + b"---\n" + broken).planned) == 2


def test_two_of_one_name_are_refused() -> None:
    one = json.dumps(manifest()).encode()
    reading = read(one + b"\n---\n" + one)
    assert len(reading.planned) == 1
    assert "there is a CronJob 'one' above already" in reading.bad[0].text


@pytest.mark.parametrize(
    "text",
    [
        b"a: &a [" + b"x, " * 200 + b"]\nb: &b [" + b"*a, " * 200 + b"]\nc: [" + b"*b, " * 200 + b"]\n",
        b"kind: &a [*a]\n",
        b"[" * 1500,
        b"kind: CronJob\nx: !!binary aGk=\n",
        b"kind: CronJob\nx: !!python/object/apply:os.system [true]\n",
        b"kind: CronJob\nx: .nan\n",
        b"kind: CronJob\n? [a]\n: b\n",
        b"kind: CronJob\nx: !!int ''\n",
        b"\xff\xfe\xff",
        b"a: 1\nb: \x07\n",
        b"x" * ((1 << 20) + 1),
    ],
)
def test_hostile_files_are_one_problem(text: bytes) -> None:
    assert read(text).planned == []
    assert len(read(text).bad) == 1


def test_manifests_are_known_by_name_or_text() -> None:
    assert looks_like_manifests("x.yml", b"")
    assert looks_like_manifests("-", MANIFESTS)
    assert not looks_like_manifests("crontab", b"* * * * * kind: CronJob\nA=kind\n")


PARTS = st.sampled_from(
    [part for part in MANIFESTS.split(b"\n") if part] + [b"---", b"? ", b"- ", b"&a", b"*a", b"!!set"]
)


@given(st.lists(PARTS | st.binary(max_size=6), max_size=30), st.sampled_from([b"\n", b"\n  ", b" "]))
def test_whatever_a_file_holds_it_is_read_or_refused(parts: list[bytes], between: bytes) -> None:
    items = list(parse_cronjobs(between.join(parts), validate=str, validate_time_zone=str))
    assert all(isinstance(item, CronJob | CronJobProblem) for item in items)
    for item in items:
        if isinstance(item, CronJob):
            json.dumps(item.payload)
