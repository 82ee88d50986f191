"""How the clients of each language are fetched, built and started: as their README says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

CHOICE_VARIABLE: Final = "SHARDWHEEL_CI_LANGUAGES"
REPOSITORY: Final = Path(__file__).resolve().parents[2]
CLIENTS: Final = REPOSITORY / "examples" / "clients"
_TIMEOUT_S: Final = 300.0
# Programs of a few seconds are not worth compiling with care, nor threads that collect garbage side by side.
_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Command = Sequence[str]


class BuildFailed(Exception):
    """A command has failed; the text has its output."""


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language, and its programs in a folder of `examples/clients`."""

    name: str
    title: str
    """Heading of its part of the README."""
    tools: Sequence[str]
    """Programs that have to be on the machine."""
    fetch: str
    """What gets its packages from their registry: if this fails, the language cannot be had here."""

    @property
    def folder(self) -> Path:
        """Where its commands are run."""
        return CLIENTS / self.name

    @property
    def missing(self) -> list[str]:
        """The tools that are not on this machine."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    @cached_property
    def lines(self) -> list[str]:
        """The commands of its part of the README, after the change to its folder."""
        page = (CLIENTS / "README.md").read_text(encoding="utf-8")
        part = page.split(f"\n## {self.title}\n")[1].split("\n## ")[0]
        block = re.search(r"^```sh\n(.*?)^```$", part, re.M | re.S)
        assert block is not None, f"there are no commands below {self.title}"
        first, *rest = block[1].splitlines()
        assert first == f"cd examples/clients/{self.name}", f"the commands of {self.title} begin with {first!r}"
        return rest

    @property
    def build(self) -> Sequence[str]:
        """What makes the programs: all that comes before the worker, which is started in the background."""
        [position] = [number for number, line in enumerate(self.lines) if line.endswith(" &")]
        return self.lines[:position]

    @property
    def worker(self) -> Command:
        """What starts the worker."""
        return self._started(self.lines[len(self.build)].removesuffix(" &"))

    def program(self, name: str, *arguments: str) -> Command:
        """Return what starts another program, with other arguments than in the README."""
        [line] = [line for line in self.lines[len(self.build) + 1 :] if name in line.lower()]
        program = re.match(rf".*?{name}(\.js)?(?= )", line, re.IGNORECASE)
        assert program is not None, f"{line!r} does not show how {name} is started"
        return self._started(f"{program[0]} {shlex.join(arguments)}")

    def _started(self, line: str) -> Command:
        """Return a command for any folder; its process becomes that of the line."""
        return ["bash", "-c", f"cd {self.folder} && JAVA_TOOL_OPTIONS='{_JVM_OPTIONS}' exec {line}"]

    def run(self, line: str) -> None:
        """Run a command in the language's folder. Raises `BuildFailed`."""
        # `buf` is in the environment of the tests.
        path = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])
        try:
            done = subprocess.run(
                ["bash", "-c", line], cwd=self.folder, env={"MAVEN_OPTS": _JVM_OPTIONS} | os.environ | {"PATH": path},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildFailed(f"{line}: not done after {_TIMEOUT_S:g} s") from error
        if done.returncode != 0:
            raise BuildFailed(f"{line}:\n{done.stdout.decode(errors='replace')[-4000:]}")


LANGUAGES: Final = (
    Language(name="node", title="TypeScript", tools=("node", "npm"), fetch="npm ci"),
    Language(name="go", title="Go", tools=("go",), fetch="go mod download"),
    Language(name="java", title="Java", tools=("java", "javac", "mvn"), fetch="mvn -B -ntp -q generate-sources"),
)


def reason_to_skip(language: Language) -> str:
    """Return why a language does not run here, empty if it has to."""
    choice = os.environ.get(CHOICE_VARIABLE)
    if choice is not None:
        chosen = {name.strip() for name in choice.split(",")}
        return "" if language.name in chosen else f"{language.name} is not among {CHOICE_VARIABLE}={choice}"
    return f"{language.name}: not on this machine: {', '.join(language.missing)}" if language.missing else ""


def available() -> list[str]:
    """Return the languages whose tools are here and whose packages can be fetched; say on stderr what is left out."""
    found = []
    for language in LANGUAGES:
        reason = f"not on this machine: {', '.join(language.missing)}" if language.missing else ""
        if not reason:
            try:
                language.run(language.fetch)
            except BuildFailed as error:
                reason = f"packages cannot be fetched: {error}"
        if reason:
            print(f"clients in {language.name} are left out: {reason}", file=sys.stderr)
        else:
            found.append(language.name)
    return found
