"""Rules about the source text that no other tool checks."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("server", "shard_manager", "worker_sdk", "benchmarks", "examples", "proto")
PRODUCT_LIMIT = 500
TEST_LIMIT = 700

# Where SQL may be run: the store, the coordinator that keeps its leases in PostgreSQL, and the one call that a handler
# makes on a connection of its own.
SQL_PLACES = (
    "server/store/",
    "shard_manager/postgres/",
    "shard_manager/postgres.py",
    "worker_sdk/completion.py",
    "worker_sdk/sql_submit.py",
)
SQL_CALL = re.compile(r"\.(execute|executemany)\(|\bcursor\(")

FORBIDDEN_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
# Where this very checkout and its interpreter lie, and hosts of package registries and mirrors.
MACHINE_TEXT = re.compile(
    "|".join(re.escape(place) for place in {str(REPOSITORY), sys.prefix, sys.base_prefix} - {"/usr", "/usr/local", "/"})
    + r"|/work/(?:main|shared)\b"
    + r"|(?:index-url|registry)\s*[=:]\s*\S*https?://|pypi\.org|registry\.npmjs|repo1?\.maven|proxy\.golang",
    re.IGNORECASE,
)
TEXT_SUFFIXES = {
    ".py", ".pyi", ".sql", ".proto", ".toml", ".cfg", ".ini", ".yaml", ".yml", ".json", ".md", ".txt", ".sh", ".html",
    ".js", ".css", ".tpl", ".ts", ".go", ".mod", ".java", ".xml",
}  # fmt: skip
SKIPPED_FOLDERS = {".git", ".venv", "node_modules", "gen", "dist", "build", "target", "__pycache__", ".shardwheel"}


def files(*roots: str, suffix: str = ".py") -> list[Path]:
    """Return the hand-written files below the given folders, relative to the repository."""
    return sorted(
        path.relative_to(REPOSITORY)
        for root in roots
        for path in (REPOSITORY / root).rglob(f"*{suffix}")
        if not SKIPPED_FOLDERS & set(path.relative_to(REPOSITORY).parts)
    )


def texts() -> list[Path]:
    """Return every hand-written text file of the repository, relative to it."""
    found = [path for path in files(".", suffix="") if path.suffix in TEXT_SUFFIXES]
    return [*found, Path("Makefile"), Path(".ci/run")]


def length(path: Path) -> int:
    return len((REPOSITORY / path).read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(("roots", "limit"), [(PRODUCT, PRODUCT_LIMIT), (("tests",), TEST_LIMIT)])
def test_no_file_is_too_long(roots: tuple[str, ...], limit: int) -> None:
    too_long = {str(path): length(path) for path in files(*roots) if length(path) > limit}
    assert too_long == {}


def test_product_files_are_short_on_the_whole() -> None:
    lengths = sorted(length(path) for path in files("server", "shard_manager", "worker_sdk"))
    assert lengths[len(lengths) // 2] <= 180


def test_sql_is_run_in_the_store_only() -> None:
    found = [
        f"{path}:{number}"
        for path in files("server", "shard_manager", "worker_sdk")
        if not str(path).startswith(SQL_PLACES)
        for number, line in enumerate((REPOSITORY / path).read_text(encoding="utf-8").splitlines(), start=1)
        if SQL_CALL.search(line)
    ]
    assert found == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [str(path) for path in files(*PRODUCT, "tests") if path.name in FORBIDDEN_NAMES] == []


def test_no_text_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in texts()
        if path != Path("tests/unit/test_architecture.py")
        for number, line in enumerate((REPOSITORY / path).read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_TEXT.search(line)
    ]
    assert found == []


def test_product_code_has_no_type_ignores_and_no_todo_marks() -> None:
    mark = re.compile(r"#\s*type:\s*ignore|\b(TODO|FIXME|XXX)\b")
    found = [
        f"{path}:{number}"
        for path in files("server", "shard_manager", "worker_sdk", "proto")
        for number, line in enumerate((REPOSITORY / path).read_text(encoding="utf-8").splitlines(), start=1)
        if mark.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("package", ["server", "shard_manager", "worker_sdk", "proto/gen/shardwheel"])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (REPOSITORY / package / "py.typed").is_file()


def test_every_package_of_the_product_has_a_docstring() -> None:
    missing = [
        str(path)
        for path in files("server", "shard_manager", "worker_sdk")
        if path.name == "__init__.py" and not (REPOSITORY / path).read_text(encoding="utf-8").lstrip().startswith('"""')
    ]
    assert missing == []


def test_every_dependency_has_its_reason_beside_it() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    lines = [line.strip() for line in text.splitlines()]
    bare = [name for name in wanted if not any(re.match(rf'"{re.escape(name)}",\s+# \w', line) for line in lines)]
    assert bare == []


def test_runtime_bounds_follow_the_generator() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = [name for name in project["optional-dependencies"]["dev"] if name.startswith("grpcio-tools==")]
    version = pinned[0].removeprefix("grpcio-tools==")
    family = [name for name in project["dependencies"] if name.startswith("grpcio")]
    assert [name for name in family if f">={version}," not in name] == []
