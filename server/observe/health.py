"""What a node says of its own health."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; `detail` says for people what was found."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The checks of one probe. It is good if all of them are."""

    node: str
    checks: Sequence[Check]

    @property
    def ok(self) -> bool:
        """Whether the probe is green."""
        return all(check.ok for check in self.checks)

    def document(self, verdict: str) -> dict[str, object]:
        """Return the report for JSON; `verdict` names the whole, as in "ready"."""
        return {
            verdict: self.ok,
            "node": self.node,
            "checks": [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in self.checks],
        }


class HealthView(Protocol):
    """What probes ask. Nothing here blocks or fails."""

    def alive(self) -> Report:
        """Whether the process does its work; one that does not is best started again."""

    def ready(self) -> Report:
        """Whether the node should be sent calls."""
