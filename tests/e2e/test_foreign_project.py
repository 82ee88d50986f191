"""A worker from the small wheel serves a real node from inside a project with packages named like ours."""

import asyncio
from pathlib import Path

from tests.support.nodes import running_node
from tests.support.wheels import bare_python, sdk_environment
from worker_sdk import AsyncClient

HANDLERS = """
import server, tests
from worker_sdk import Worker

worker = Worker()


@worker.handler("who")
async def who(payload: dict[str, str]) -> str:
    assert payload == {"asked": "by a client"}
    return f"{server.OWNER} {tests.OWNER}"
"""


async def test_a_worker_runs_in_a_project_with_packages_named_like_ours(database: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for package in ("server", "tests"):
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").write_text(f'OWNER = "the project\'s {package}"\n')
    (project / "handlers.py").write_text(HANDLERS)
    environment = await asyncio.to_thread(sdk_environment, tmp_path / "sdk")
    async with running_node(database, tmp_path / "node") as node, AsyncClient(node.address) as client:
        job = await client.submit("who", {"asked": "by a client"})
        command = [bare_python(), "-m", "worker_sdk", "handlers:worker", "--address", node.address]
        with (tmp_path / "worker.log").open("wb") as log:
            worker = await asyncio.create_subprocess_exec(
                *command, cwd=project, env=environment, stdout=log, stderr=log
            )
        try:
            done = await client.wait(job.job_id, timeout=30)
            assert done.result_json() == "the project's server the project's tests"
        finally:
            worker.terminate()
            code = await asyncio.wait_for(worker.wait(), 20)
        assert code == 0, (tmp_path / "worker.log").read_text()
