"""Handlers: functions that execute jobs, and what is known about them."""

import asyncio
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack

from worker_sdk.codec import Codec, DecodePayload, payload_decoder
from worker_sdk.errors import ConfigurationError
from worker_sdk.jobs import NewJob, SubmitOptions, Submitted
from worker_sdk.policies import RetryPolicy, Timeouts

Payload = TypeVar("Payload")
Rest = ParamSpec("Rest")
Return = TypeVar("Return")

MAX_NAME_LENGTH = 200
_NAME = re.compile(r"[A-Za-z0-9._\-/]+")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Submitter(Protocol):
    """Submits jobs for a handler: a `Client`."""

    def submit(self, handler: str, payload: object = None, **options: Unpack[SubmitOptions]) -> Submitted:
        """Store a job and return once it is stored for good."""
        ...

    def start_submit(
        self, handler: str, payload: object = None, **options: Unpack[SubmitOptions]
    ) -> "Future[Submitted]":
        """Begin to store a job; the future is done once it is stored for good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDefinition:
    """What a worker knows about a handler."""

    name: str
    function: Callable[..., object]
    is_async: bool
    takes_context: bool
    decode: DecodePayload
    codec: Codec
    max_concurrency: int
    """Attempts that run at a time in one worker."""
    retry: RetryPolicy | None
    """Default for jobs that do not say otherwise."""
    timeouts: Timeouts | None
    """Default for jobs that do not say otherwise."""


class Handler(Generic[Payload, Rest, Return]):
    """A function registered with a worker. Calling it calls the function, without worker or server."""

    def __init__(
        self,
        function: Callable[Concatenate[Payload, Rest], Return],
        definition: HandlerDefinition,
        submitter: Callable[[], Submitter],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._submitter = submitter
        self.definition = definition

    @property
    def name(self) -> str:
        """Name under which jobs ask for the handler."""
        return self.definition.name

    def __call__(self, payload: Payload, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Return:
        """Call the function."""
        return self._function(payload, *args, **kwargs)

    def __repr__(self) -> str:
        """Name the handler."""
        return f"<Handler {self.name!r}>"

    def submit(self, payload: Payload, **options: Unpack[SubmitOptions]) -> Submitted:
        """Store a job for this handler and return once it is stored for good. Blocks; not for event loops.

        The options are the fields of `NewJob`. Uses the worker's own client (`Worker.client`).
        """
        return self._submitter().submit(self.name, payload, **options)

    async def submit_async(self, payload: Payload, **options: Unpack[SubmitOptions]) -> Submitted:
        """Do the same as `submit`, from any event loop."""
        return await asyncio.wrap_future(self._submitter().start_submit(self.name, payload, **options))

    def job(self, payload: Payload, **options: Unpack[SubmitOptions]) -> NewJob:
        """Return a job for this handler, for `submit_many` and `bulk_submit`."""
        return NewJob(handler=self.name, payload=payload, **options)


def define_handler(
    function: Callable[..., object],
    *,
    name: str,
    codec: Codec,
    max_concurrency: int,
    retry: RetryPolicy | None,
    timeouts: Timeouts | None,
) -> HandlerDefinition:
    """Look at a function and return its definition. Raises `ConfigurationError` if it cannot be a handler."""
    if _NAME.fullmatch(name) is None or len(name) > MAX_NAME_LENGTH:
        raise ConfigurationError(
            f"handler: {name!r} is not a name; use letters, digits and ._-/ , at most {MAX_NAME_LENGTH} of them"
        )
    if max_concurrency < 1:
        raise ConfigurationError(f"max_concurrency: {max_concurrency} is too small for {name!r}; give at least 1")
    parameters = [item for item in inspect.signature(function).parameters.values() if item.kind in _POSITIONAL]
    if len(parameters) not in (1, 2):
        raise ConfigurationError(f"handler {name!r} has to take (payload) or (payload, context)")
    annotation = _payload_annotation(function, parameters[0], name)
    annotated = annotation is not inspect.Parameter.empty and annotation not in (typing.Any, object)
    return HandlerDefinition(
        name=name,
        function=function,
        is_async=inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None)),  # noqa: B004 - a coroutine method is meant
        takes_context=len(parameters) == 2,
        decode=payload_decoder(codec, annotation if annotated else typing.Any, annotated=annotated),
        codec=codec,
        max_concurrency=max_concurrency,
        retry=retry,
        timeouts=timeouts,
    )


def _payload_annotation(function: Callable[..., object], parameter: inspect.Parameter, name: str) -> object:
    """Return the type of the payload. Only this annotation is resolved: the context's may exist for checkers only."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    plain = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    holder = types.SimpleNamespace(__annotations__={"payload": parameter.annotation})
    try:
        nonlocals = dict(inspect.getclosurevars(plain).nonlocals) if inspect.isfunction(plain) else {}
        names = getattr(plain, "__globals__", {})
        return typing.get_type_hints(holder, globalns=names, localns=nonlocals, include_extras=True)["payload"]
    except NameError as error:
        raise ConfigurationError(
            f"handler {name!r}: the payload type {parameter.annotation!r} cannot be resolved ({error});"
            " define it at module level and import it at run time"
        ) from error
