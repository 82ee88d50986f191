"""What a scenario has measured, for people and for scripts."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures of one scenario."""

    scenario: str
    unit: str
    values: Mapping[str, float]
    runs: int

    def as_json(self) -> str:
        """Return one JSON object on one line."""
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
        return json.dumps(asdict(self) | {"machine": machine})

    def as_text(self) -> str:
        """Return a small table."""
        width = max(len(name) for name in self.values)
        lines = [f"{self.scenario}: {self.unit} ({self.runs} runs)"]
        lines += [f"  {name:<{width}}  {value:10.3f}" for name, value in self.values.items()]
        return "\n".join(lines)
