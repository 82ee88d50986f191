"""`python -m tests.helm.golden`: write the renders that are kept, after a change that is meant."""

import re
from pathlib import Path

from tests.helm.chart import VALUES, render

FOLDER = Path(__file__).parent / "golden"
NAMES = ("usual", "trial", "everything")

# What is drawn, and what follows from it.
_DRAWN = re.compile(
    r"^( *)(ca\.crt|ca\.key|tls\.crt|tls\.key|token|password|superuser|url|shardwheel/terms|checksum/database): \S+$",
    re.MULTILINE,
)


def kept(name: str) -> str:
    """Return a render without what differs each time, and without lines of blanks."""
    text = _DRAWN.sub(r"\1\2: DRAWN", render(VALUES[name]))
    return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"


def main() -> None:
    """The command."""
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        (FOLDER / f"{name}.yaml").write_text(kept(name), encoding="utf-8")


if __name__ == "__main__":
    main()
