"""CronJobs of Kubernetes manifests, as YAML or JSON, several documents in a file: what each asks for, and what is bad.

Only the form is read here, and what a schedule needs of it; whether expression and zone make sense is asked of the
`validate` functions. A bad document never stops the reading, except that YAML which cannot be parsed ends it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import yaml

from server.domain.crontab import TEXT_LIMIT
from server.domain.errors import InvalidInput

NODES_LIMIT: Final = 100_000
DOCUMENTS_LIMIT: Final = 10_000
_LOOKED_AT_CHARS: Final = 1 << 17
_MANIFEST_LINE: Final = re.compile(r'^\s*"?(apiVersion|kind)"?\s*:', re.MULTILINE)
_API_VERSIONS: Final = ("batch/v1", "batch/v1beta1")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_POLICIES: Final = ("Allow", "Forbid", "Replace")
# What the reader of YAML raises beside its own errors, for numbers and keys that it cannot make.
_UNREADABLE: Final = (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJob:
    """A CronJob. `time_zone` is None if it names none; `deadline` is its startingDeadlineSeconds.

    `payload` is what a handler needs to run it: its name, its namespace, and the spec of its job template.
    """

    line: int
    name: str
    namespace: str
    expression: str
    time_zone: str | None
    policy: str
    deadline: timedelta | None
    suspended: bool
    payload: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobProblem:
    """A document that cannot be a schedule, with the line of what is wrong. `foreign`: it is no CronJob at all."""

    line: int
    reason: str
    foreign: bool = False


def looks_like_manifests(path: str, text: bytes) -> bool:
    """Tell manifests from a crontab: by the file's ending, else by a line that only a manifest has."""
    if path.endswith((".yaml", ".yml", ".json")):
        return True
    return _MANIFEST_LINE.search(text[:_LOOKED_AT_CHARS].decode("utf-8", "replace")) is not None


def parse_cronjobs(
    text: bytes, *, validate: Callable[[str], object], validate_time_zone: Callable[[str], object]
) -> Iterator[CronJob | CronJobProblem]:
    """Read manifests; yield the CronJobs and the problems in the order of the documents."""
    if len(text) > TEXT_LIMIT:
        yield CronJobProblem(line=1, reason=f"the file has more than {TEXT_LIMIT} bytes; split it")
        return
    try:
        loader = _Loader(text.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        yield CronJobProblem(line=1, reason=f"is not YAML in UTF-8: {_said(error)}")
        return
    for _ in range(DOCUMENTS_LIMIT):
        try:
            node = loader.get_node() if loader.check_node() else None
        except _UNREADABLE as error:
            yield CronJobProblem(
                line=_line_of(error, loader), reason=f"is not YAML: {_said(error)}; what follows is lost"
            )
            return
        if node is None:
            return
        for item in _items(loader, node):
            yield item if isinstance(item, CronJobProblem) else _read(item, validate, validate_time_zone)
    yield CronJobProblem(
        line=loader.line + 1, reason=f"reading stops after {DOCUMENTS_LIMIT} documents; split the file"
    )


class _Loader(yaml.SafeLoader):
    """Makes what JSON knows: dates stay texts, as for Kubernetes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class _Document:
    """A parsed document with the nodes that know its lines."""

    value: Mapping[str, object]
    node: yaml.Node

    def line(self, *path: str) -> int:
        """The line of a field, or of what is nearest around it."""
        node = self.node
        for name in path:
            if not isinstance(node, yaml.MappingNode):
                break
            inside = next((value for key, value in node.value if getattr(key, "value", None) == name), None)
            if inside is None:
                break
            node = inside
        return int(node.start_mark.line) + 1

    def get(self, *path: str) -> object:
        """The value of a field, None if there is none."""
        value: object = self.value
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


class _Bad(Exception):
    """A field cannot be accepted."""

    def __init__(self, path: tuple[str, ...], value: object, reason: str) -> None:
        shown = "" if value is None else f" (got {str(value)[:100]!r})"
        super().__init__(f"{'.'.join(path)}: {reason}{shown}")
        self.path = path


def _items(loader: _Loader, node: yaml.Node) -> Iterator[_Document | CronJobProblem]:
    """The document of a node, or those inside it if it is a List."""
    line = int(node.start_mark.line) + 1
    if not _is_bounded(node):
        yield CronJobProblem(line=line, reason=f"has more than {NODES_LIMIT} nodes, aliases written out; split it")
        return
    try:
        value: object = loader.construct_document(node)
        # Whatever has no JSON form is found here, not when the payload is made.
        json.dumps(value, allow_nan=False)
    except _UNREADABLE as error:
        yield CronJobProblem(line=line, reason=f"cannot be read: {_said(error)}")
        return
    if value is None:
        return
    if not isinstance(value, dict):
        yield CronJobProblem(line=line, reason="is no manifest: a mapping with apiVersion and kind is needed")
        return
    if value.get("kind") == "List" and isinstance(value.get("items"), list):
        nodes = next(inside.value for key, inside in node.value if key.value == "items")
        for item, inside in zip(value["items"], nodes, strict=True):
            if isinstance(item, dict):
                yield _Document(item, inside)
            else:
                yield CronJobProblem(line=int(inside.start_mark.line) + 1, reason="is no manifest")
        return
    yield _Document(value, node)


def _is_bounded(root: yaml.Node) -> bool:
    """Whether the document stays small when its aliases are written out; one that contains itself does not."""
    waiting, seen = [root], 0
    while waiting:
        node = waiting.pop()
        seen += 1
        if seen > NODES_LIMIT:
            return False
        if isinstance(node, yaml.MappingNode):
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return True


def _read(
    document: _Document, validate: Callable[[str], object], validate_time_zone: Callable[[str], object]
) -> CronJob | CronJobProblem:
    kind = document.get("kind")
    if kind != "CronJob":
        shown = "a document without kind" if kind is None else f"kind {str(kind)[:60]!r}"
        return CronJobProblem(line=document.line("kind"), reason=f"{shown} is no CronJob, skipped", foreign=True)
    try:
        return _cronjob(document, validate, validate_time_zone)
    except _Bad as error:
        return CronJobProblem(line=document.line(*error.path), reason=str(error))


def _cronjob(
    document: _Document, validate: Callable[[str], object], validate_time_zone: Callable[[str], object]
) -> CronJob:
    _choice(document, ("apiVersion",), _API_VERSIONS, None)
    name = _text(document, ("metadata", "name"), None)
    namespace = _text(document, ("metadata", "namespace"), "")
    for path, text in ((("metadata", "name"), name), (("metadata", "namespace"), namespace)):
        if text and not _NAME.fullmatch(text):
            raise _Bad(path, text, "takes lower-case letters, digits, '-' and '.', at most 63 characters")
    # Kubernetes reads a question mark as a star.
    expression = _text(document, ("spec", "schedule"), None).replace("?", "*")
    if "TZ=" in expression:
        raise _Bad(("spec", "schedule"), expression, "names a zone; say it in timeZone")
    _checked(("spec", "schedule"), expression, validate)
    time_zone = _text(document, ("spec", "timeZone"), "")
    if time_zone:
        _checked(("spec", "timeZone"), time_zone, validate_time_zone)
    template = document.get("spec", "jobTemplate", "spec")
    if not isinstance(template, Mapping):
        raise _Bad(("spec", "jobTemplate", "spec"), None, "is required")
    return CronJob(
        line=document.line("spec", "schedule"),
        name=name,
        namespace=namespace,
        expression=expression,
        time_zone=time_zone or None,
        policy=_choice(document, ("spec", "concurrencyPolicy"), _POLICIES, "Allow"),
        deadline=_deadline(document),
        suspended=_flag(document, ("spec", "suspend")),
        payload={"name": name, "namespace": namespace or "default", "spec": template},
    )


def _text(document: _Document, path: tuple[str, ...], default: str | None) -> str:
    value = document.get(*path)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.strip():
        raise _Bad(path, value, "is required" if value is None else "has to be a text")
    return value.strip()


def _choice(document: _Document, path: tuple[str, ...], served: tuple[str, ...], default: str | None) -> str:
    value = _text(document, path, default)
    if value not in served:
        raise _Bad(path, value, f"has to be {' or '.join(served)}")
    return value


def _flag(document: _Document, path: tuple[str, ...]) -> bool:
    value = document.get(*path)
    if value is not None and not isinstance(value, bool):
        raise _Bad(path, value, "has to be true or false")
    return bool(value)


def _deadline(document: _Document) -> timedelta | None:
    path = ("spec", "startingDeadlineSeconds")
    value = document.get(*path)
    if value is None:
        return None
    most = timedelta(days=3660)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most.total_seconds():
        raise _Bad(path, value, f"has to be a whole number from 0 to {most.total_seconds():.0f}")
    return timedelta(seconds=value)


def _checked(path: tuple[str, ...], text: str, validate: Callable[[str], object]) -> None:
    try:
        validate(text)
    except InvalidInput as error:
        raise _Bad(path, text, f"{error.field}: {error.reason}") from error


def _line_of(error: Exception, loader: _Loader) -> int:
    mark = getattr(error, "problem_mark", None)
    return int(mark.line if mark is not None else loader.line) + 1


def _said(error: Exception) -> str:
    text = getattr(error, "problem", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
