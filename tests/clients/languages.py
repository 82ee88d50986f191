"""How the clients of each language are fetched, built and started."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHOICE_VARIABLE: Final = "SHARDWHEEL_CI_LANGUAGES"
FOLDER: Final = Path(__file__).resolve().parents[2] / "examples" / "clients"
_TIMEOUT_S: Final = 300.0
# Programs of a few seconds are not worth compiling with care, nor threads that collect garbage side by side.
_JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

Command = Sequence[str]


class BuildFailed(Exception):
    """A command has failed; the text has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language, and its programs in `examples/clients`."""

    name: str
    tools: Sequence[str]
    """Programs that have to be on the machine."""
    fetch: Sequence[Command]
    """Commands that get what comes from package registries: if they fail, the language cannot be had here."""
    build: Sequence[Command]
    """Commands that make the programs, with nothing done before."""
    worker: Command
    submit: Command
    schedule: Command

    @property
    def missing(self) -> list[str]:
        """The tools that are not on this machine."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    def run_all(self, commands: Sequence[Command]) -> None:
        """Run commands in the language's folder. Raises `BuildFailed`."""
        # `buf` is in the environment of the tests. Maven does not live long enough to profit from better code.
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
        variables = {"MAVEN_OPTS": " ".join(_JVM_OPTIONS)} | os.environ | {"PATH": path}
        for command in commands:
            try:
                done = subprocess.run(
                    command, cwd=FOLDER / self.name, env=variables, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise BuildFailed(f"{' '.join(command)}: not done after {_TIMEOUT_S:g} s") from error
            if done.returncode != 0:
                raise BuildFailed(f"{' '.join(command)}:\n{done.stdout.decode(errors='replace')[-4000:]}")


def _node(program: str) -> Command:
    return ["node", str(FOLDER / "node" / "dist" / f"{program}.js")]


def _go(program: str) -> Command:
    return [str(FOLDER / "go" / "bin" / program)]


def _java(program: str) -> Command:
    target = FOLDER / "java" / "target"
    return [
        "java",
        *_JVM_OPTIONS,
        "-cp",
        f"{target / 'classes'}{os.pathsep}{target / 'lib' / '*'}",
        f"example.{program}",
    ]


_MAVEN: Final = ("mvn", "--batch-mode", "--no-transfer-progress", "--quiet")

LANGUAGES: Final = (
    Language(
        name="node",
        tools=("node", "npm"),
        fetch=[["npm", "ci", "--prefer-offline"]],
        build=[["npm", "ci", "--prefer-offline"], ["npm", "run", "--silent", "build"]],
        worker=_node("worker"),
        submit=_node("submit"),
        schedule=_node("schedule"),
    ),
    Language(
        name="go",
        tools=("go",),
        fetch=[["go", "mod", "download"]],
        build=[["buf", "generate"], ["go", "build", "-o", "bin/", "./..."]],
        worker=_go("worker"),
        submit=_go("submit"),
        schedule=_go("schedule"),
    ),
    Language(
        name="java",
        tools=("java", "javac", "mvn"),
        fetch=[[*_MAVEN, "generate-sources"]],
        build=[[*_MAVEN, "compile"]],
        worker=_java("Worker"),
        submit=_java("Submit"),
        schedule=_java("Schedule"),
    ),
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
                language.run_all(language.fetch)
            except BuildFailed as error:
                reason = f"packages cannot be fetched: {error}"
        if reason:
            print(f"clients in {language.name} are left out: {reason}", file=sys.stderr)
        else:
            found.append(language.name)
    return found
