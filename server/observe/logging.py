"""Log lines of the commands: structlog's formatting over the standard library's loggers.

Code logs with `logging.getLogger(__name__)`, a constant message, and what varies in `extra`; this module alone decides
how that looks. As "json", each record is one line with `timestamp` (UTC), `level`, `event`, `logger`, the extra fields
and, for an exception, its traceback as one string in `exception`. As "text", the same for people.

What users put into jobs has no place in logs: fields that hold payloads, results or credentials are left out whoever
logs them, passwords in connection strings are masked, and so are the lines in which PostgreSQL quotes rows.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_LEFT_OUT: Final = frozenset({"payload", "result", "dsn", "database", "conninfo", "password", "token", "authorization"})
_MASK: Final = "***"
_URI_PASSWORD: Final = re.compile(r"(?<=://)([^\s:/@]*):[^\s@/]+@")
_WORD_PASSWORD: Final = re.compile(r"(\bpassword\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s'&]+)", re.IGNORECASE)
_QUOTED_ROWS: Final = re.compile(r"^(DETAIL|CONTEXT):.*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# These repeat at every try what the code that uses them says once.
_QUIET: Final = {
    "psycopg.pool": logging.ERROR,
    "asyncio": logging.WARNING,
    "kazoo": logging.WARNING,
    "uvicorn": logging.WARNING,
    "opentelemetry": logging.ERROR,
}


def configure_logging(format: str, level: str, *, node: str = "", stream: TextIO | None = None) -> None:
    """Send the process's log records to `stream` (stderr by default) as "json" or "text".

    Each JSON line carries the name of the `node`, if there is one. `level` is "debug", "info", "warning" or "error".
    May be called again; only the last call counts. Raises ValueError for another format or level.
    """
    if format not in ("json", "text"):
        raise ValueError(f'format: has to be "json" or "text" (got {format!r})')
    if level not in LEVELS:
        raise ValueError(f"level: has to be one of {', '.join(LEVELS)} (got {level!r})")
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    renderer = _to_json(node) if format == "json" else _console(colors=stream.isatty())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_add_instant, structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _leave_out,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, LEVELS[level]))


def masked(text: str) -> str:
    """Return text without the passwords of connection strings and without the rows that PostgreSQL quotes."""
    text = _WORD_PASSWORD.sub(rf"\1{_MASK}", _URI_PASSWORD.sub(rf"\1:{_MASK}@", text))
    return _QUOTED_ROWS.sub(r"\1: (left out)\n", text)


def _add_instant(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put the record's own time first."""
    instant = datetime.fromtimestamp(event["_record"].created, UTC)
    return {"timestamp": instant.isoformat(timespec="microseconds").replace("+00:00", "Z"), **event}


def _leave_out(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {
        name: _MASK if name in _LEFT_OUT and name != "event" else masked(value) if isinstance(value, str) else value
        for name, value in event.items()
    }


def _to_json(node: str) -> structlog.typing.Processor:
    about = {"node": node} if node else {}

    def rendered(_: WrappedLogger, __: str, event: EventDict) -> str:
        first = {name: event.pop(name) for name in ("timestamp", "level", "event", "logger") if name in event}
        fields = {**first, **about, **event}
        try:
            return orjson.dumps(fields, default=str).decode()
        except TypeError:
            # Lone surrogates, and integers beyond 64 bits.
            return json.dumps(fields, default=str)

    return rendered


def _console(*, colors: bool) -> structlog.typing.Processor:
    # Not the default formatter of exceptions: that one shows local variables, payloads among them.
    render = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)

    def escaped(logger: WrappedLogger, name: str, event: EventDict) -> str:
        """Render without control characters, which could forge lines or steer the terminal."""
        clean = {key: _printable(value) if isinstance(value, str) else value for key, value in event.items()}
        if "exception" in event:
            # Its lines are kept apart.
            clean["exception"] = "\n".join(map(_printable, str(event["exception"]).splitlines()))
        return str(render(logger, name, clean))

    return escaped


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
