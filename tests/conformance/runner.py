"""Takes a worker through the checklist."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.conformance import cluster_checks, job_checks, session_checks
from tests.conformance.checklist import CHECKS, Check, Run, Setting, Verdict
from tests.conformance.stage import Stage

# Their import fills the checklist.
__all__ = ["cluster_checks", "examine", "job_checks", "session_checks"]

_DIFFERENT = Check(rule="2", title="the incarnation is another one after each start", run=Stage.join)


async def examine(command: Sequence[str], checks: Sequence[Check] = CHECKS) -> AsyncIterator[Verdict]:
    """Take the worker that `command` starts through checks, in the order of their rules, and yield what came of each.

    Checks without a setting share a worker, as long as they pass; after a failure the next one gets a new worker.
    Raises `FileNotFoundError` if there is no such program.
    """
    incarnations: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        shared: Stage | None = None
        for one in sorted(checks, key=lambda check: (check.setting is not None, int(check.rule))):
            if one.setting is not None:
                async with _stage(command, one.setting) as stage:
                    verdict = await _judge(one, stage)
                    incarnations += {hello.incarnation for hello in stage.hellos}
                yield verdict
                continue
            fault = ""
            if shared is None:
                shared = await stack.enter_async_context(_stage(command, Setting()))
                fault = await _fault(Stage.join, shared)
                incarnations += {hello.incarnation for hello in shared.hellos}
            verdict = await _judge(one, shared) if not fault else Verdict(check=one, fault=fault)
            if verdict.passed:
                unsettled = await _fault(Stage.settle, shared)
                verdict = Verdict(check=one, fault=unsettled and f"afterwards: {unsettled}")
            yield verdict
            if not verdict.passed:
                await stack.aclose()
                shared = None
    if len(incarnations) > 1:
        again = len(incarnations) > len(set(incarnations))
        yield Verdict(check=_DIFFERENT, fault=f"incarnations of all starts: {incarnations}" if again else "")


async def _judge(one: Check, stage: Stage) -> Verdict:
    return Verdict(check=one, fault=await _fault(one.run, stage))


async def _fault(run: Run, stage: Stage) -> str:
    """Run something on a stage; return what was wrong, with the end of what the worker printed."""
    try:
        await run(stage)
    except (AssertionError, TimeoutError) as error:
        reason = str(error) or "nothing came in time"
        return f"{reason}\n{stage.process.output_tail()}".strip()
    return ""


@contextlib.asynccontextmanager
async def _stage(command: Sequence[str], setting: Setting) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        async with Stage(command, Path(folder), secured=setting.secured, grace_s=setting.grace_s) as stage:
            for node in stage.nodes:
                node.behaviour.refusal = setting.refusal
            yield stage
