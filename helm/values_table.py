"""`python helm/values_table.py`: write the table of values in the chart's README.md from comments in values.yaml."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent / "shardwheel"
BEGIN: Final = "<!-- values -->\n"
_LINE: Final = re.compile(r"(?P<indent> *)(?:# -- (?P<text>.+)|(?P<key>[\w.]+):.*)")
_STEP: Final = 2


def described(source: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, description) of each value that has a comment beginning with `--` above it."""
    path: list[str] = []
    text = ""
    for line in source.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        if found["text"]:
            text = found["text"]
            continue
        path[len(found["indent"]) // _STEP :] = [found["key"]]
        if text:
            yield ".".join(path), text
        text = ""


def leaves(values: dict[str, Any], described_names: set[str], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of values that need a description: those that hold no described ones."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        inside = any(other.startswith(f"{name}.") for other in described_names)
        if isinstance(value, dict) and (inside or name not in described_names) and value:
            yield from leaves(value, described_names, f"{name}.")
        else:
            yield name


def table(source: str) -> str:
    """Return the table in Markdown."""
    values = yaml.safe_load(source)
    rows = list(described(source))
    names = {name for name, _ in rows}
    lines = ["| Value | Default | Meaning |", "|---|---|---|"]
    for name, text in rows:
        default: Any = values
        for key in name.split("."):
            default = default[key]
        group = any(other.startswith(f"{name}.") for other in names)
        shown = "" if group or default in ("", None) else f"`{json.dumps(default)}`"
        lines.append(f"| `{name}` | {shown} | {text} |")
    return "\n".join(lines) + "\n"


def with_table(readme: str, source: str) -> str:
    """Return the text of README.md with the table below its mark."""
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition("\n\n")[2]
    return f"{before}{BEGIN}{table(source)}" + (f"\n{after}" if after else "")


def main() -> None:
    """The command."""
    readme = CHART / "README.md"
    source = (CHART / "values.yaml").read_text(encoding="utf-8")
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), source), encoding="utf-8")


if __name__ == "__main__":
    main()
