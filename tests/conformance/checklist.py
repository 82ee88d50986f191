"""The checks, in the order of their definition, and what came of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from tests.conformance.stage import GRACE_S, Stage

Run = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A stage that is set otherwise: a check with one gets a stage of its own, whose worker is not started yet."""

    secured: bool = False
    """Nodes speak TLS."""
    refusal: tuple[grpc.StatusCode, str] | None = None
    """What nodes answer to hello."""
    grace_s: float = GRACE_S
    """How long the worker lets handlers run after SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a worker has to do."""

    rule: str
    """The rule of docs/worker-protocol.md."""
    title: str
    run: Run = field(repr=False)
    setting: Setting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a check."""

    check: Check
    fault: str = ""
    """What was wrong, empty if nothing was."""

    @property
    def passed(self) -> bool:
        """Whether the worker did as it has to."""
        return not self.fault

    def __str__(self) -> str:
        line = f"{'pass' if self.passed else 'FAIL'}  {self.check.rule:>4}  {self.check.title}"
        return line if self.passed else f"{line}\n            {self.fault}"


CHECKS: list[Check] = []


def check(rule: str, title: str, setting: Setting | None = None) -> Callable[[Run], Run]:
    """Enter a function into the checklist. What it raises is the worker's fault."""

    def enter(run: Run) -> Run:
        CHECKS.append(Check(rule=rule, title=title, run=run, setting=setting))
        return run

    return enter
