"""The clients' commands in the main README are those of their own, which are run."""

import re

from tests.clients.languages import CLIENTS, LANGUAGES, REPOSITORY


def test_the_readme_repeats_commands_that_are_run() -> None:
    part = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("\n### Other languages\n")[1]
    [block] = re.findall(r"^```sh\n(.*?)^```$", part.split("\n## ")[0], re.M | re.S)
    commands = [command for line in block.splitlines() for command in line.split(" && ")]
    [node] = [language for language in LANGUAGES if language.name == "node"]
    assert set(commands) <= {"cd examples/clients/node", *node.lines}


def test_every_file_is_short() -> None:
    sources = [
        path
        for pattern in ("node/src/*.ts", "go/*/*.go", "java/src/main/java/example/*.java")
        for path in CLIENTS.glob(pattern)
    ]
    assert len(sources) > len(LANGUAGES)
    assert {path.name: lines for path in sources if (lines := len(path.read_text().splitlines())) >= 200} == {}
