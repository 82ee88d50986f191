"""A Dockerfile as a shell script: its own steps, in a clean folder that stands for the root of the file system."""

import json
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_CONTINUED: Final = re.compile(r"\\\n\s*")
# Where the steps put things. Everything else that they name belongs to the base image.
_OURS: Final = re.compile(r"(?<![\w./])/(opt|src)(?=[/\s\"]|$)")
_ENV: Final = re.compile(r'(\w+)=("[^"]*"|\S+)')
_MOUNT: Final = re.compile(r"--mount=\S+\s+")


@dataclass(frozen=True, slots=True)
class Image:
    """What the last stage says about the image, and the script that makes its file system."""

    user: str
    command: list[str]
    environment: dict[str, str]
    script: str


@dataclass(slots=True)
class _Reader:
    """Goes through the instructions; `root` is what / stands for, `context` what is sent to a build."""

    context: Path
    root: Path
    lines: list[str] = field(default_factory=lambda: ["set -eu"])
    environment: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    stage: str = ""

    def read(self, instruction: str) -> None:
        word, _, rest = instruction.partition(" ")
        rest = rest.strip()
        match word:
            case "FROM":
                self._from(rest)
            case "ARG" if self.stage:
                self.lines.append(f": ${{{rest.replace('=', ':=', 1)}}}")
            case "ENV":
                for name, value in _ENV.findall(rest):
                    self.environment[name] = self._here(value.strip('"'))
                    self.lines.append(f"export {name}={self._here(value)}")
            case "WORKDIR":
                self.folder = rest
                self.lines.append(f"mkdir -p {self._place(rest)}; cd {self._place(rest)}")
            case "COPY":
                self._copy(rest.split())
            case "RUN":
                self.lines.append(self._here(_MOUNT.sub("", rest)))
            case "ARG" | "LABEL" | "EXPOSE" | "USER" | "ENTRYPOINT" | "CMD":
                self.words[word] = rest
            case _:
                raise AssertionError(f"nobody knows here what {word} does")

    def _from(self, rest: str) -> None:
        """The next stage begins with nothing of ours; the paths in it are the same."""
        if self.stage:
            self.lines.append(f"cd /; mv {self.root} {self.root.parent / self.stage}")
        self.lines.append(f"mkdir -p {self.root}")
        self.stage = rest.partition(" AS ")[2] or "final"
        self.folder, self.words, self.environment = "/", {}, {}

    def _copy(self, words: list[str]) -> None:
        base = self.context
        if words[0].startswith("--from="):
            base = self.root.parent / words.pop(0).removeprefix("--from=")
        *sources, target = words
        place = self._place(target)
        for source in sources:
            origin = base / source.lstrip("/")
            # The contents of a folder are copied, or a file into a folder.
            self.lines.append(
                f"if test -d {origin}; then mkdir -p {place}; cp -R {origin}/. {place}; else cp {origin} {place}; fi"
            )

    def _place(self, path: str) -> str:
        return shlex.quote(f"{self.root}{path if path.startswith('/') else f'{self.folder}/{path}'}")

    def _here(self, text: str) -> str:
        return _OURS.sub(lambda found: f"{self.root}{found[0]}", text)


def read_dockerfile(text: str, *, context: Path, root: Path) -> Image:
    """Return what the last stage makes. Other stages end up beside `root`, under their names."""
    reader = _Reader(context, root)
    instructions = [line for line in text.splitlines() if not line.startswith("#")]
    for line in _CONTINUED.sub(" ", "\n".join(instructions)).splitlines():
        if line.strip():
            reader.read(line)
    command = json.loads(reader.words["ENTRYPOINT"]) + json.loads(reader.words["CMD"])
    return Image(reader.words["USER"], command, reader.environment, "\n".join(reader.lines) + "\n")


def copy_context(repository: Path, target: Path) -> None:
    """Copy what a build is sent: .dockerignore forbids everything and then allows some names."""
    first, *patterns = (repository / ".dockerignore").read_text(encoding="utf-8").split()
    assert first == "*"
    target.mkdir()
    for pattern in patterns:
        if not pattern.startswith("!"):
            continue
        source = repository / pattern[1:]
        if source.is_dir():
            shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / source.name)
