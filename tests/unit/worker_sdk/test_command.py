"""`python -m worker_sdk`."""

import sys
from pathlib import Path

import pytest

from worker_sdk import ConfigurationError
from worker_sdk.__main__ import load_worker, main, start_line

PROGRAM = """
from worker_sdk import Worker

worker = other = Worker("node:7400", name="w-1")
number = 3

@worker.handler("mail.send", max_concurrency=5)
def send(payload: object) -> None: ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a few programs in it."""
    (tmp_path / "sdk_jobs.py").write_text(PROGRAM)
    (tmp_path / "sdk_broken.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_worker_is_found_by_module_and_variable() -> None:
    worker = load_worker("sdk_jobs:other")
    assert load_worker("sdk_jobs") is worker
    worker.configure(name="w-2", namespace="tenant")
    assert start_line(worker) == "worker w-2 runs mail.send x5 for namespace tenant at node:7400; Ctrl-C stops"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("sdk_missing:worker", "there is no module 'sdk_missing'"),
        ("sdk_missing.sub:worker", r"there is no module 'sdk_missing\.sub'"),
        ("sdk_jobs:missing", "has no Worker named 'missing'"),
        ("sdk_jobs:number", "has no Worker named 'number'"),
    ],
)
def test_what_is_not_there_is_named(place: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_worker(place)


def test_an_import_that_fails_inside_the_module_is_shown_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        load_worker("sdk_broken")


def test_refused_input_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sdk_jobs:worker", "--address", "nowhere"]) == 2
    assert "'nowhere' is not host:port" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["sdk_jobs:worker", "--log-level", "LOUD"])
    assert caught.value.code == 2
