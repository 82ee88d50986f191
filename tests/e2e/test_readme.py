"""What the README and the docs say is true: commands run, tables are those of the code, links lead on.

The blocks of the README that are run stand below a comment: `<!-- file: NAME -->` shows a file of examples/quickstart,
`<!-- run: WHAT -->` is typed into a terminal. In all pages, blocks below `<!-- run: shell -->` and `<!-- run: sql -->`
are run against a server.
"""

import ast
import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from server.cli.command import app as shardwheel_app
from server.config import NodeConfig
from server.domain.job import MAX_PRIORITY
from server.domain.retry import DELAY_LIMIT
from shard_manager.shardctl.main import app as shardctl_app
from tests.support.commands import environment
from tests.support.scratch import make_folder, remove_folder
from tests.support.waiting import wait_until
from worker_sdk.testing import LocalServer

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
QUICKSTART = REPOSITORY / "examples" / "quickstart"
PAGES = [
    README,
    REPOSITORY / "CHANGELOG.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted(page for page in (REPOSITORY / "examples").rglob("*.md") if "node_modules" not in page.parts),
]
ACTIVATE = ". .venv/bin/activate"
BIN = Path(sys.executable).parent
COMMAND_LINES: dict[str, typer.Typer] = {"shardctl": shardctl_app, "shardwheel": shardwheel_app}
TIMEOUT_S = 60.0

FENCE = re.compile(r"(?:^<!-- (?P<mark>[\w.: -]+?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)
HELP = re.compile(r"(?P<doc>.*) \[env: (?P<variable>\w+)(?:; default: (?P<default>.*))?\]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    mark: str
    language: str
    text: str

    @property
    def runs(self) -> bool:
        """Whether it is run by itself, against any server."""
        return self.mark in ("run: shell", "run: sql")

    @property
    def lines(self) -> list[str]:
        """Its lines, continued ones joined."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(page: Path) -> list[Block]:
    found = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["mark"] or "", match["language"], match["text"]) for match in found]


def block(mark: str) -> Block:
    """The one block of the README with a mark."""
    [found] = [one for one in blocks(README) if one.mark == mark]
    return found


def title(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


# The first screen.


@pytest.mark.parametrize(("name", "limit"), [("worker.py", 12), ("submit.py", 6)])
def test_first_screen_shows_the_files_of_the_quick_start(name: str, limit: int) -> None:
    shown = block(f"file: {name}")
    assert shown.text == (QUICKSTART / name).read_text(encoding="utf-8")
    assert len(shown.lines) <= limit


def test_first_screen_is_a_sentence_the_guarantee_a_diagram_worker_submit_and_two_commands() -> None:
    screen, rest = README.read_text(encoding="utf-8").split("\n---\n", 1)
    paragraphs = [part for part in re.split(r"\n{2,}", re.sub(FENCE, "FENCED", screen)) if part.strip()]
    assert [part.split()[0] for part in paragraphs] == [
        "#",
        "A",
        "**Guarantee.**",
        "FENCED",
        *["A", "FENCED"] * 2,
        "FENCED",
    ]
    assert paragraphs[1].count(".") == 1
    assert [line.split("#")[0].strip() for line in FENCE.findall(screen)[-1][2].splitlines()] == [
        "make demo",
        "make test",
    ]
    assert len(screen.splitlines()) <= 60
    assert "## Quick start" in rest


# The quick start, run.


class Terminal:
    """A shell that runs the lines of a block, in a process group of its own."""

    def __init__(self, lines: list[str], folder: Path, name: str, **variables: str) -> None:
        self._output = folder / name
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                ["sh", "-ec", "\n".join([*lines[:-1], f"exec {lines[-1]}"])],
                cwd=REPOSITORY,
                env=terminal_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Wait until the output matches, and return the match."""

        def look() -> bool:
            found = re.search(pattern, self.output)
            assert found or self.process.poll() is None, f"ended with {self.process.returncode}: {self.output}"
            return found is not None

        wait_until(look, timeout_s=TIMEOUT_S, what=f"the output {pattern!r}")
        match = re.search(pattern, self.output)
        assert match is not None
        return match

    def interrupt(self) -> int:
        """Do what Ctrl-C does, and return the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(TIMEOUT_S)


def terminal_environment(**variables: str) -> dict[str, str]:
    """What a shell has after `. .venv/bin/activate`."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return environment(PATH=path, VIRTUAL_ENV=str(BIN.parent), PYTHONDONTWRITEBYTECODE="1", **variables)


def typed(mark: str) -> list[str]:
    """The lines of a block to run, without the one that the environment stands for."""
    first, *lines = block(mark).lines
    assert first == ACTIVATE
    return lines


@contextmanager
def terminal(lines: list[str], folder: Path, name: str, **variables: str) -> Iterator[Terminal]:
    opened = Terminal(lines, folder, name, **variables)
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            os.killpg(opened.process.pid, signal.SIGKILL)
            opened.process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every account may pass through."""
    path = make_folder("shardwheel-readme-")
    yield path
    remove_folder(path)


def run(line: str, address: str) -> str:
    """Run one line of a terminal; return what it printed."""
    done = subprocess.run(
        ["sh", "-ec", line],
        cwd=REPOSITORY,
        env=terminal_environment(SHARDWHEEL_ADDRESS=address),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def test_quick_start_does_what_it_says(folder: Path) -> None:
    *lines, dev = typed("run: server")
    # The ports and the folder are the test's own; all else is what the README says.
    dev = f"{dev} --port 0 --data-dir {shlex.quote(str(folder / 'data'))}"
    with terminal([*lines, dev], folder, "server") as server:
        address = server.wait_for(r"gRPC +(127\.0\.0\.1:\d+)\n(?s:.*)shardctl status")[1]
        with terminal(typed("run: worker"), folder, "worker", SHARDWHEEL_ADDRESS=address) as worker:
            worker.wait_for("connected to node")
            printed = [run(line, address) for line in typed("run: commands")]
            worker.wait_for("sending to ada@example.org, try 1")
            assert worker.interrupt() == 0, worker.output
        assert server.interrupt() == 0, server.output
        assert "Traceback" not in server.output + worker.output
    submit, waited, later, listed, created, preview, triggered, status = printed
    assert submit == "sent\n"
    assert re.search(r"^state +completed$", waited, re.M)
    assert "(pending)" in later
    assert {"completed", "pending"} <= set(listed.split())
    assert "fires next at" in created
    assert preview.count("Z  ") == 5
    assert "email.send" in triggered
    assert re.search(r"^workers +1$", status, re.M)


# Blocks of all pages that need nothing but a server.


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server that knows what the pages take for granted: a handler, an application's role and table."""
    with LocalServer() as server:
        server.client().submit("email.send")
        with psycopg.connect(server.database) as connection:
            connection.execute("CREATE ROLE app")
            connection.execute("CREATE TABLE public.orders (number integer, customer text)")
        yield server


@pytest.mark.parametrize("page", [page for page in PAGES if any(one.runs for one in blocks(page))], ids=title)
def test_blocks_of_a_page_run_as_they_stand(server: LocalServer, page: Path) -> None:
    """In their order: lines of shells, and statements as the role that owns the schema."""
    for one in blocks(page):
        if one.mark == "run: shell":
            for line in one.lines:
                run(line, server.address)
        elif one.mark == "run: sql":
            with psycopg.connect(server.database, autocommit=True) as connection:
                connection.execute(one.text.encode())


# Commands, code and links of all pages.


def commands() -> list[tuple[str, str]]:
    """Every line of a shell block that calls one of our commands, with its page."""
    found = []
    for page in PAGES:
        for one in blocks(page):
            if one.language == "sh":
                found += [(title(page), line) for line in one.lines if re.match(r"(\w+=\S+ )*shard(ctl|wheel)\b", line)]
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_command_of_a_page_exists_with_its_options(page: str, line: str) -> None:
    words = shlex.split(re.sub(r"[|>&].*", "", line), comments=True)
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]
    result = CliRunner().invoke(COMMAND_LINES[words[0]], [*words[1:], "--help"])
    assert result.exit_code == 0, f"{page}: {line}: {result.output}"
    assert result.output.startswith("Usage: ")


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_python_of_a_page_compiles_and_imports_what_exists(page: Path) -> None:
    for one in blocks(page):
        if one.language != "python":
            continue
        for statement in ast.walk(ast.parse(one.text)):
            if isinstance(statement, ast.ImportFrom) and str(statement.module).split(".")[0] == "worker_sdk":
                module = importlib.import_module(str(statement.module))
                missing = [name.name for name in statement.names if not hasattr(module, name.name)]
                assert missing == [], f"{statement.module} in:\n{one.text}"


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get where it is shown."""
    text = re.sub(FENCE, "", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).lower() for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(FENCE, "", page.read_text(encoding="utf-8"))
    broken = []
    for target in {match["target"] for match in LINK.finditer(text)}:
        if re.match(r"https?://", target):
            continue
        place, _, anchor = target.partition("#")
        there = (page.parent / place).resolve() if place else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_every_page_of_the_docs_is_reached_from_the_readme() -> None:
    reached, new = set[Path](), {README}
    while new:
        page = new.pop()
        reached.add(page)
        targets = (match["target"].partition("#")[0] for match in LINK.finditer(page.read_text(encoding="utf-8")))
        linked = {(page.parent / target).resolve() for target in targets if target.endswith(".md")}
        new |= linked - reached
    assert set(PAGES) - reached == set()


# Tables that repeat what the code says.


def settings_table() -> str:
    """The settings as the command line describes them."""
    rows = ["| Setting | Default | Meaning |", "|---|---|---|"]
    names = []
    for parameter in vars(get_command(shardwheel_app))["commands"]["serve"].params:
        match = HELP.fullmatch(getattr(parameter, "help", "") or "")
        if match is None:
            continue
        names.append(match["variable"].removeprefix("SHARDWHEEL_").lower())
        default = match["default"] or ""
        shown = default if " " in default or not default else f"`{default}`"
        rows.append(f"| `{parameter.opts[0]}` | {shown} | {match['doc']} |")
    assert names == list(NodeConfig.__dataclass_fields__)
    return "\n".join(rows) + "\n"


def test_settings_are_those_of_the_node() -> None:
    _, _, after = README.read_text(encoding="utf-8").partition("<!-- settings -->\n")
    table = "".join(line for line in after.partition("\n\n")[0].splitlines(keepends=True))
    assert table + "\n" == settings_table(), f"the table has to be:\n{settings_table()}"


def constants(path: str) -> dict[str, object]:
    """The values of the plain constants of a module of the server's edge."""
    module = importlib.import_module(path)
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int | float)}


def test_limits_are_those_of_the_code() -> None:
    validation = constants("server.api.validation")
    assert (validation["MAX_NAME_CHARS"], validation["MAX_KEY_CHARS"], validation["MAX_LABEL_VALUE_CHARS"]) == (
        200,
    ) * 3
    assert (validation["MAX_LABELS"], validation["MAX_LABEL_KEY_CHARS"]) == (32, 63)
    assert (validation["MAX_ATTEMPTS"], validation["MAX_PAYLOAD_BYTES"]) == (1000, 1 << 20)
    assert validation["MAX_CONCURRENCY_LIMIT"] == 10_000
    assert constants("server.api.job_listing")["MAX_PAGE"] == 1000
    assert constants("worker_sdk.context")["MAX_PROGRESS_BYTES"] == 16 << 10
    assert constants("worker_sdk.execution")["MAX_ERROR_BYTES"] == 16 << 10
    assert (DELAY_LIMIT.days, MAX_PRIORITY) == (30, 5)
    # The texts that say so; whoever changes a number above finds them here.
    limits = README.read_text(encoding="utf-8").partition("## Limits")[2].partition("## Status")[0]
    for said in ("1 MiB at most", "1000 jobs and 4 MiB", "16 KiB", "200 characters", "32 labels, with keys of 63",
                 "| tries | 1000 |", "30 days", "3660 days"):  # fmt: skip
        assert said in limits


def test_reasons_of_errors_are_those_of_the_server() -> None:
    files = [*(REPOSITORY / "server" / "api").glob("*.py"), REPOSITORY / "server" / "cluster_orders.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    # Reasons are written out where they are used, and nothing else in these files looks like one.
    used = set(re.findall(r"\"([A-Z]+(?:_[A-Z]+)+|INTERNAL)\"", source))
    api = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `([A-Z_]+)` \|", api, re.M))
    assert described == used
