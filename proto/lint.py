"""Lint the .proto files and look for breaking changes: `python proto/lint.py`.

Changes are judged against the `main` branch and against the latest release tag (`v*`), as far as they exist and hold
.proto files. Both run offline. The exit code is 1 if anything is found.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BUF = Path(sysconfig.get_path("scripts")) / "buf"


def baselines() -> list[str]:
    """Return the commits to compare with: the last one of `main` that touched the API, and the latest release."""
    found: list[str] = []
    for branch in ("main", "origin/main"):
        commit = _git("log", "-1", "--format=%H", branch, "--", "proto/shardwheel")
        if commit:
            found.append(commit)
            break
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*")
    if tag and _git("ls-tree", "--name-only", tag, "proto/shardwheel"):
        found.append(tag)
    return found


def main() -> int:
    """Run buf's lint and its breaking-change check; return the exit code."""
    failed = not _buf("lint", "proto")
    references = baselines()
    if not references:
        print("no earlier version of the .proto files to compare with", file=sys.stderr)
    for reference in references:
        failed = not _buf("breaking", "proto", "--against", f".git#ref={reference},subdir=proto") or failed
    return 1 if failed else 0


def _git(*arguments: str) -> str:
    finished = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return finished.stdout.strip() if finished.returncode == 0 else ""


def _buf(*arguments: str) -> bool:
    return subprocess.run([str(BUF), *arguments], cwd=REPOSITORY, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
