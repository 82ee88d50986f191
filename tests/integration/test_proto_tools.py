"""The scripts that generate and judge the wire API, tried on a small API of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

THING = """\
syntax = "proto3";

package shardwheel.v1;

import "google/protobuf/timestamp.proto";

// A thing.
message Thing {
  // Its name.
  string name = 1;
  // When it was made.
  google.protobuf.Timestamp create_time = 2;
}
"""
THING_SERVICE = """\
syntax = "proto3";

package shardwheel.v1;

import "shardwheel/v1/thing.proto";

// Talks about things.
service ThingService {
  // Returns one thing after another.
  rpc Talk(stream TalkRequest) returns (stream Thing);
}

// Says something.
message TalkRequest {
  // What is said.
  oneof said {
    // In words.
    string words = 1;
    // In numbers.
    int32 number = 2;
  }
}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with the scripts and a small API, committed on `main`."""
    folder = tmp_path / "proto" / "shardwheel" / "v1"
    folder.mkdir(parents=True)
    (folder / "thing.proto").write_text(THING)
    (folder / "thing_service.proto").write_text(THING_SERVICE)
    for name in ("generate.py", "lint.py", "buf.yaml"):
        shutil.copy(REPOSITORY / "proto" / name, tmp_path / "proto" / name)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", ".")
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    git(tmp_path, *identity, "commit", "--quiet", "--message=API")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def run(project: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"proto/{script}", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=60)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_generates_typed_code_without_empty_service_files(project: Path) -> None:
    done = run(project, "generate.py")
    assert done.returncode == 0, done.stderr
    generated = project / "proto" / "gen" / "shardwheel"
    assert {path.relative_to(generated).as_posix() for path in generated.rglob("*") if path.is_file()} == {
        "__init__.py",
        "py.typed",
        "v1/__init__.py",
        "v1/thing_pb2.py",
        "v1/thing_pb2.pyi",
        "v1/thing_service_pb2.py",
        "v1/thing_service_pb2.pyi",
        "v1/thing_service_pb2_grpc.py",
        "v1/thing_service_pb2_grpc.pyi",
    }
    assert "_aio.StreamStreamMultiCallable" in (generated / "v1" / "thing_service_pb2_grpc.pyi").read_text()
    assert run(project, "generate.py", "--check").returncode == 0


def test_check_names_stale_missing_and_left_over_files_and_writes_nothing(project: Path) -> None:
    run(project, "generate.py")
    generated = project / "proto" / "gen" / "shardwheel" / "v1"
    (generated / "thing_pb2.py").write_text("# edited by hand\n")
    (generated / "thing_pb2.pyi").unlink()
    (generated / "gone_pb2.py").write_text("")
    checked = run(project, "generate.py", "--check")
    assert checked.returncode == 1
    named = {Path(line).name for line in checked.stderr.splitlines() if line.startswith("out of date: ")}
    assert named == {"thing_pb2.py", "thing_pb2.pyi", "gone_pb2.py"}
    assert (generated / "thing_pb2.py").read_text() == "# edited by hand\n"

    run(project, "generate.py")
    assert run(project, "generate.py", "--check").returncode == 0
    assert not (generated / "gone_pb2.py").exists()


def test_a_proto_file_with_an_error_stops_the_generator(project: Path) -> None:
    edit(project / "proto" / "shardwheel" / "v1" / "thing.proto", "string name = 1;", "strong name = 1;")
    done = run(project, "generate.py")
    assert done.returncode != 0
    assert "strong" in done.stderr


def test_a_good_api_and_an_added_field_pass_the_lint(project: Path) -> None:
    assert run(project, "lint.py").returncode == 0
    added = "string name = 1;\n  // Its colour.\n  string colour = 3;"
    edit(project / "proto" / "shardwheel" / "v1" / "thing.proto", "string name = 1;", added)
    assert run(project, "lint.py").returncode == 0


def test_a_missing_comment_fails_the_lint(project: Path) -> None:
    edit(project / "proto" / "shardwheel" / "v1" / "thing.proto", "  // Its name.\n", "")
    done = run(project, "lint.py")
    assert done.returncode == 1
    assert "name" in done.stdout


def test_a_renumbered_field_is_a_breaking_change(project: Path) -> None:
    edit(project / "proto" / "shardwheel" / "v1" / "thing.proto", "string name = 1;", "string name = 7;")
    done = run(project, "lint.py")
    assert done.returncode == 1
    assert 'field "1"' in done.stdout


def test_changes_are_also_judged_against_the_latest_release(project: Path) -> None:
    git(project, "tag", "v0.1.0")
    edit(project / "proto" / "shardwheel" / "v1" / "thing.proto", "string name = 1;", "string name = 7;")
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.invalid")
    git(project, *identity, "commit", "--quiet", "--all", "--message=Renumber")
    assert run(project, "lint.py").returncode == 1
    git(project, "tag", "v0.2.0")
    assert run(project, "lint.py").returncode == 0
