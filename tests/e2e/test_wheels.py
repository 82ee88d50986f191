"""The two wheels of the tree: what is in them, what they need, and that building them leaves no trace."""

import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support.wheels import REPOSITORY, bare_python, build_wheel, sdk_environment

# Imports everything in worker_sdk from a project whose own packages have the names of ours.
PROGRAM = """
import importlib, pkgutil, sys
import server, tests, worker_sdk

assert server.OWNER == tests.OWNER == "the project", (server, tests)
names = [module.name for module in pkgutil.walk_packages(worker_sdk.__path__, "worker_sdk.")]
for name in names:
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            # What a worker with the extra kafka imports when it starts.
            assert error.name == "confluent_kafka" and name.startswith("worker_sdk.kafka_"), (name, error)
import shardwheel.v1.worker_service_pb2_grpc
print(len(names), *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of what git knows or would add; building the wheels must not change it."""
    copy = tmp_path_factory.mktemp("tree")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, copy / name)
    before = set(copy.rglob("*"))
    yield copy
    assert set(copy.rglob("*")) == before, "building the wheels left files in the tree"


@pytest.fixture(scope="module")
def sdk_wheel(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Path:
    return build_wheel(tree / "worker_sdk", tmp_path_factory.mktemp("sdk"))


@pytest.fixture(scope="module")
def whole_wheel(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Path:
    return build_wheel(tree, tmp_path_factory.mktemp("whole"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def sources(package: str, root: Path) -> set[str]:
    """Return the files of a package that a wheel has to hold."""
    return {
        path.relative_to(root).as_posix()
        for path in (root / package).rglob("*")
        if path.is_file()
        and path.name != "pyproject.toml"
        and (path.suffix in {".py", ".pyi", ".sql"} or path.name == "py.typed")
    }


def test_the_small_wheel_holds_the_sdk_and_the_generated_code_only(sdk_wheel: Path, tree: Path) -> None:
    wanted = sources("worker_sdk", tree) | sources("shardwheel", tree / "proto" / "gen")
    assert names_in(sdk_wheel) == wanted | {"worker_sdk/LICENSE"}


def test_the_small_wheel_needs_grpc_and_protobuf_only(sdk_wheel: Path) -> None:
    metadata = metadata_of(sdk_wheel)
    assert metadata["Name"] == "shardwheel-sdk"
    needed = [text for text in metadata.get_all("Requires-Dist") or [] if "extra ==" not in text]
    assert sorted(text.split("<")[0].split(">")[0] for text in needed) == ["grpcio", "protobuf"]


def test_the_whole_wheel_holds_everything(whole_wheel: Path, tree: Path) -> None:
    wanted = sources("shardwheel", tree / "proto" / "gen")
    for package in ("server", "shard_manager", "worker_sdk"):
        wanted |= sources(package, tree)
    names = names_in(whole_wheel)
    assert wanted - names == set()
    assert {name.partition("/")[0] for name in names} == {"server", "shard_manager", "worker_sdk", "shardwheel"}
    assert "worker_sdk/pyproject.toml" not in names
    assert any(name.startswith("server/store/migrations/") and name.endswith(".sql") for name in names)


def test_both_wheels_have_one_version_and_the_same_bounds(sdk_wheel: Path, whole_wheel: Path) -> None:
    small, whole = metadata_of(sdk_wheel), metadata_of(whole_wheel)
    assert small["Version"] == whole["Version"]
    assert set(small.get_all("Requires-Dist") or []) <= set(whole.get_all("Requires-Dist") or [])


def test_the_whole_wheel_installs_both_commands(whole_wheel: Path) -> None:
    with zipfile.ZipFile(whole_wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "shardwheel = server.cli:main" in text
    assert "shardctl = shard_manager.shardctl:main" in text


def test_the_sdk_works_in_a_project_with_packages_named_like_ours(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for package in ("server", "tests"):
        (project / package).mkdir(parents=True)
        (project / package / "__init__.py").write_text('OWNER = "the project"\n')
    (project / "program.py").write_text(PROGRAM)
    command = [bare_python(), "program.py"]
    environment = sdk_environment(tmp_path / "sdk")
    finished = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    count, *imported = finished.stdout.split()
    assert int(count) > 0
    assert not {"shard_manager", "psycopg", "kazoo", "croniter", "typer", "structlog"} & set(imported)
