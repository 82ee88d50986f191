"""A real crontab, from its import to the end of the jobs that it fired: shardctl, node, PostgreSQL, worker."""

import asyncio
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.app import Node
from tests.support.nodes import running_node
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, Job

REPOSITORY = Path(__file__).resolve().parents[2]
CRONTAB = """\
# /etc/crontab: system-wide crontab
SHELL=/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin
GREETING="hello from cron"

# m h dom mon dow user  command
*  *    * * *   {user}  echo "$GREETING" >> {output}
*  *    * * *   {user}  cat >> {output}%from stdin%100\\% sure
17 *    * * *   {user}  cd / && run-parts --report /etc/cron.hourly
@reboot         {user}  echo booted >> {output}
"""


@contextmanager
def crontab_worker(node: Node, log: Path) -> Iterator[None]:
    """A worker with the shell handler of the example."""
    command = [sys.executable, "-m", "worker_sdk", "examples.crontab.handlers:worker", "--address", node.address]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def shardctl(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run shardctl against the node."""
    command = [sys.executable, "-m", "shard_manager.shardctl", "--address", node.address, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)


async def import_crontab(node: Node, folder: Path) -> Path:
    """Import the crontab twice; return the file that its commands write to."""
    output = folder / "output"
    user = pwd.getpwuid(os.getuid()).pw_name
    file = folder / "crontab"
    file.write_text(CRONTAB.format(user=user, output=output))
    arguments = ("schedules", "import", str(file), "--system", "--time-zone", "UTC", "-o", "json")
    first = await asyncio.to_thread(shardctl, node, *arguments)
    assert first.returncode == 0, first.stderr
    imported = json.loads(first.stdout)
    assert [one["change"] for one in imported["schedules"]] == ["created"] * 3
    assert len(imported["skipped"]) == 1, "@reboot is no schedule"
    again = await asyncio.to_thread(shardctl, node, *arguments)
    assert [one["change"] for one in json.loads(again.stdout)["schedules"]] == ["unchanged"] * 3
    return output


async def finished_jobs(client: AsyncClient, count: int) -> list[Job]:
    """Wait for jobs of schedules and return them."""

    async def all_done() -> bool:
        jobs = [job async for job in client.list(handler="shell")]
        return len(jobs) >= count and all(job.state.final for job in jobs)

    await eventually(all_done, timeout_s=90, what="the end of the fired jobs")
    return [job async for job in client.list(handler="shell")]


def check(jobs: list[Job], output: Path) -> None:
    assert {job.state.value for job in jobs} == {"completed"}
    assert all(job.scheduled_for is not None and job.scheduled_for.second == 0 for job in jobs)
    lines = output.read_text().splitlines()
    assert sorted(set(lines)) == ["100% sure", "from stdin", "hello from cron"]
    assert len(lines) == 3 * len(jobs) // 2


async def test_a_crontab_is_imported_fired_and_finished(database: str, tmp_path: Path) -> None:
    """The minute is brought forward: the schedules' next times are set to the minute before."""
    async with running_node(database, tmp_path / "node") as node, AsyncClient(node.address) as client:
        output = await import_crontab(node, tmp_path)
        with crontab_worker(node, tmp_path / "worker.log"):
            await node.database.run(
                "UPDATE schedules SET next_fire_at = date_trunc('minute', now()) "
                "WHERE next_fire_at = date_trunc('minute', now()) + interval '1 minute'",
                api=True,
            )
            check(await finished_jobs(client, 2), output)


@pytest.mark.soak
async def test_a_crontab_fires_with_the_clock(database: str, tmp_path: Path) -> None:
    """The same without help: it takes until the next minute begins, and the one after."""
    async with running_node(database, tmp_path / "node") as node, AsyncClient(node.address) as client:
        output = await import_crontab(node, tmp_path)
        with crontab_worker(node, tmp_path / "worker.log"):
            jobs = await finished_jobs(client, 2)
            check(jobs, output)
