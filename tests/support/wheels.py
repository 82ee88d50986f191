"""Building the two wheels, and running a program that has nothing but the small one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 100

# What `shardwheel-sdk` declares to need, with what these packages need themselves.
_SDK_NEEDS = ("grpc", "google.protobuf", "google._upb", "typing_extensions")


def build_wheel(project: Path, out: Path) -> Path:
    """Build the wheel of the project in a folder of the repository, without network access; return its path."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(project)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


def install(wheel: Path, target: Path) -> None:
    """Unpack a wheel into a folder as pip does, without its dependencies."""
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, str(wheel)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def sdk_environment(folder: Path) -> dict[str, str]:
    """Build and install the small wheel below `folder`; return variables with which `bare_python()` finds it.

    Beside it, only what it declares to need can be imported: neither this repository nor the rest of the virtual
    environment.
    """
    site, needs = folder / "site", folder / "needs"
    install(build_wheel(REPOSITORY / "worker_sdk", folder / "wheel"), site)
    for name in _SDK_NEEDS:
        _link(name, needs)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(site), str(needs)])}


def bare_python() -> str:
    """Return the interpreter below the virtual environment, which sees none of the packages installed there."""
    return os.path.realpath(sys.executable)


def _link(name: str, target: Path) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations:
        source = Path(next(iter(spec.submodule_search_locations)))
        place = target.joinpath(*name.split("."))
    else:
        assert spec.origin is not None
        source = Path(spec.origin)
        place = target.joinpath(*name.split(".")[:-1], source.name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(source)
