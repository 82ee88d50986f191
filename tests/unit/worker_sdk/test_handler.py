"""What can be a handler, and what its worker knows of it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from worker_sdk import ConfigurationError, Context, Handler, NewJob, RetryPolicy, Timeouts, Worker

if TYPE_CHECKING:
    # Not there at run time, as in projects that import types for the checker only.
    from worker_sdk import Context as CheckedContext


@dataclass
class Mail:
    to: str


def test_a_handler_can_be_called_like_its_function() -> None:
    worker = Worker()

    @worker.handler("mail.send", max_concurrency=3, timeout=1.5, retry=RetryPolicy(max_attempts=2))
    def send(mail: Mail) -> str:
        """Send a mail."""
        return f"to {mail.to}"

    assert send(Mail("a")) == "to a"
    assert send.__doc__ == "Send a mail."
    assert repr(send) == "<Handler 'mail.send'>"
    (definition,) = worker.handlers
    assert (definition.name, definition.max_concurrency, definition.is_async) == ("mail.send", 3, False)
    assert definition.timeouts == Timeouts(attempt=1.5)
    assert not definition.takes_context
    assert definition.decode(b'{"to":"b"}', "application/json") == Mail("b")
    assert send.job(Mail("c"), priority=1) == NewJob(handler="mail.send", payload=Mail("c"), priority=1)


def test_all_forms_of_functions_are_told_apart() -> None:
    worker = Worker()

    class Caller:
        async def __call__(self, payload: int) -> None:
            return None

        def method(self, payload: int, ctx: Context) -> None:
            return None

    async def with_extra(extra: str, payload: int, ctx: Context) -> None:
        return None

    forms: list[tuple[Callable[..., object], bool, bool]] = [
        (Caller(), True, False),
        (Caller().method, False, True),
        (functools.partial(with_extra, "extra"), True, True),
        (lambda payload: None, False, False),
    ]
    for number, (function, is_async, takes_context) in enumerate(forms):
        worker.handler(f"form-{number}")(function)
        definition = worker.handlers[-1]
        assert (definition.is_async, definition.takes_context) == (is_async, takes_context), function


def test_an_annotation_in_a_string_is_resolved_for_the_payload_only() -> None:
    worker = Worker()

    @worker.handler("a")
    def handler(payload: "Mail", ctx: "CheckedContext") -> None:
        return None

    @dataclass
    class Local:
        x: int

    @worker.handler("b")
    def local(payload: "Local") -> int:
        return Local(payload.x).x

    assert worker.handlers[0].decode(b'{"to":"a"}', "") == Mail("a")
    assert worker.handlers[1].decode(b'{"x":1}', "") == Local(1)

    with pytest.raises(ConfigurationError, match="cannot be resolved"):

        @worker.handler("c")
        def unresolved(payload: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
            return None


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 201, "a\n"])
def test_names_keep_to_the_rules(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a name"):
        Worker().handler(name)(lambda payload: None)


def test_what_cannot_be_a_handler_is_refused() -> None:
    worker = Worker()

    def none() -> None: ...
    def three(a: int, b: int, c: int) -> None: ...
    def odd(payload: complex) -> None: ...
    def fine(payload: Any) -> None: ...

    unfit: list[Any] = [none, three]
    for function in unfit:
        with pytest.raises(ConfigurationError, match="has to take"):
            worker.handler("h")(function)
    with pytest.raises(ConfigurationError, match="not supported"):
        worker.handler("h")(odd)
    with pytest.raises(ConfigurationError, match="max_concurrency: 0"):
        worker.handler("h", max_concurrency=0)(fine)
    with pytest.raises(ConfigurationError, match="not both"):
        worker.handler("h", timeout=1, timeouts=Timeouts())
    worker.handler("h")(fine)
    with pytest.raises(ConfigurationError, match="defined twice"):
        worker.handler("h")(fine)


def test_schedules_belong_above_handlers_and_have_names_of_their_own() -> None:
    worker = Worker()

    @worker.schedule(every=5)
    @worker.handler("h")
    def handler(payload: object) -> None:
        return None

    assert isinstance(handler, Handler)
    assert [item.name for item in worker.schedules] == ["h"]
    with pytest.raises(ConfigurationError, match="defined twice"):
        worker.schedule(every=6)(handler)
    with pytest.raises(ConfigurationError, match="exactly one of cron"):
        worker.schedule(every=6, cron="* * * * *", name="x")(handler)

    def plain(payload: object) -> None:
        return None

    with pytest.raises(ConfigurationError, match=r"put @worker\.schedule"):
        worker.schedule(every=5, name="y")(plain)  # type: ignore[type-var]


def test_a_worker_says_what_is_wrong_with_its_settings() -> None:
    with pytest.raises(ConfigurationError, match="has no handler"):
        Worker(name="empty").start()
    with pytest.raises(ConfigurationError, match="grace"):
        Worker(grace=-1)
    worker = Worker("nowhere")
    worker.handler("h")(lambda payload: None)
    with pytest.raises(ConfigurationError, match="'nowhere' is not host:port"):
        worker.start()
    assert Worker().name
    assert not Worker().nodes
    assert not Worker().wait_connected(0)
    assert Worker().stop()
