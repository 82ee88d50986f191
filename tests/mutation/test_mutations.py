"""With each protection taken out of the real code in turn, the tests named for it turn red.

The long form (`make soak`) runs them; in every run it is checked that the protections are where the catalogue says, and
that the named tests exist.
"""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.mutation.catalogue import MUTATIONS, Mutation
from tests.mutation.plugin import VARIABLE

ROOT = Path(__file__).parents[2]
LIMIT_S = 300


def by_name(mutation: Mutation) -> str:
    return mutation.name


@pytest.mark.parametrize("mutation", MUTATIONS, ids=by_name)
def test_the_protection_is_there_and_so_are_its_tests(mutation: Mutation) -> None:
    spec = importlib.util.find_spec(mutation.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    changed = mutation.apply(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    for test in mutation.caught_by:
        file, *names = test.partition("[")[0].split("::")
        assert (ROOT / file).is_file(), test
        defined = {getattr(node, "name", "") for node in ast.walk(ast.parse((ROOT / file).read_text()))}
        assigned = {getattr(node, "id", "") for node in ast.walk(ast.parse((ROOT / file).read_text()))}
        assert names[0] in defined | assigned, test


def test_mutations_have_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.soak
@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=by_name)
def test_without_the_protection_its_tests_turn_red(mutation: Mutation, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider", "-q",
               "--junit-xml", str(report), *mutation.caught_by]  # fmt: skip
    environment = {**os.environ, VARIABLE: mutation.name}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    # A test that fails may have a second entry, for an error while it was cleaned up.
    red = {case.get("name") for case in cases if case.find("failure") is not None}
    unmoved = {case.get("name") for case in cases} - red
    assert done.returncode == 1, done.stdout[-4000:]
    assert len(red) == len(mutation.caught_by), f"not noticed by {unmoved}\n{done.stdout[-4000:]}"
