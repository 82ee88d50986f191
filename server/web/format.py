"""How values are written for people: instants, spans, counts, payloads. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from server.api.convert import instant as instant_of
from server.api.convert import span as span_of
from shardwheel.v1.job_pb2 import Attempt, Job

NOTHING: Final = "–"
#: As much of a payload or result is shown.
MAX_BODY_BYTES: Final = 4096
MAX_HEX_BYTES: Final = 256

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def moment(value: Timestamp | datetime) -> str:
    """Return an instant in full: "2026-03-01 12:00:05 UTC"."""
    return _at(value).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(value: Timestamp | datetime) -> str:
    """Return an instant for machines."""
    return _at(value).isoformat()


def relative(value: Timestamp | datetime, now: datetime) -> str:
    """Return an instant as seen from now: "3 min ago", "in 2 h 5 min", "now"."""
    seconds = (_at(value) - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    text = span(timedelta(seconds=abs(seconds)))
    return f"in {text}" if seconds > 0 else f"{text} ago"


def span(value: Duration | timedelta) -> str:
    """Return a length of time, in two units at most: "350 ms", "4.2 s", "3 min 5 s", "2 d 1 h"."""
    seconds = (value if isinstance(value, timedelta) else span_of(value)).total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = int(seconds)
    parts = []
    for size, unit in _UNITS:
        amount, rest = divmod(whole, size)
        if amount:
            parts.append(f"{amount} {unit}")
            whole = rest
            if len(parts) == 2:
                break
        elif parts:
            break
    return " ".join(parts)


def until(started: Timestamp, ended: Timestamp) -> str:
    """Return the length of time between two instants."""
    return span(max(timedelta(0), instant_of(ended) - instant_of(started)))


def count(value: int) -> str:
    """Return a whole number with its thousands apart."""
    return f"{value:,}"


def rate(value: float) -> str:
    """Return a number per second, with as many digits as are worth reading."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 or value == 0 else f"{value:.2f}"


def first_line(text: str) -> str:
    """Return what an error says before its traceback."""
    return text.strip().partition("\n")[0]


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as people write them: "0–6, 14, 16–18"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def state_name(state: int) -> str:
    """Return the state of a job as people write it; a state that this version does not know by its number."""
    return _name(Job.State.items(), state)


def outcome_name(outcome: int) -> str:
    """Return how an attempt ended."""
    return _name(Attempt.Outcome.items(), outcome).replace("_", " ")


def _name(items: Sequence[tuple[str, int]], number: int) -> str:
    return next((name.lower() for name, value in items if value == number), f"state {number}")


def _at(value: Timestamp | datetime) -> datetime:
    return value.astimezone(UTC) if isinstance(value, datetime) else instant_of(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A payload or result to be shown; `kind` is "json", "text" or "hex", `cut` says that there is more of it."""

    text: str
    kind: str
    size: int
    cut: bool


def body(data: bytes) -> Body:
    """Return as much of opaque bytes as is shown: JSON indented, other text as it is, anything else in hexadecimal."""
    if len(data) <= MAX_BODY_BYTES:
        try:
            # Unlike orjson, this keeps whole numbers of any length as they are.
            indented = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
        else:
            # JSON may name half of a character, which no text can hold.
            sound = indented[: 4 * MAX_BODY_BYTES].encode("utf-8", "backslashreplace").decode()
            return Body(text=sound, kind="json", size=len(data), cut=False)
    head = data[:MAX_BODY_BYTES]
    try:
        # A character that the cut goes through is left out.
        text = head.decode("utf-8", "strict") if len(head) == len(data) else _whole_characters(head)
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character in "\t\r\n" for character in text):
        return Body(text=text, kind="text", size=len(data), cut=len(data) > MAX_BODY_BYTES)
    return Body(text=_hex_lines(data[:MAX_HEX_BYTES]), kind="hex", size=len(data), cut=len(data) > MAX_HEX_BYTES)


def _whole_characters(head: bytes) -> str:
    for left_out in range(4):
        try:
            return head[: len(head) - left_out].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return "\0"


def _hex_lines(data: bytes) -> str:
    return "\n".join(f"{at:04x}  {data[at : at + 16].hex(' ')}" for at in range(0, len(data), 16))
