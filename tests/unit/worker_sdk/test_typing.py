"""What type checkers know: the assertions here are checked by mypy, and run only to see that nothing raises."""

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from psycopg import AsyncConnection, Connection, Cursor

from worker_sdk import Context, Handler, NewJob, Submitted, Worker

worker = Worker()


@dataclass
class Mail:
    to: str


class Order(TypedDict):
    number: int


@worker.handler("mail.send")
async def send(mail: Mail) -> str:
    return mail.to


@worker.schedule(cron="0 3 * * *")
@worker.handler("order.pack", max_concurrency=2)
def pack(order: Order, ctx: Context) -> int:
    return order["number"]


def test_handlers_keep_the_types_of_their_functions() -> None:
    assert_type(send, Handler[Mail, [], Coroutine[Any, Any, str]])
    assert_type(pack.job({"number": 3}), NewJob)
    assert send.name == "mail.send"


async def never_called(ctx: Context) -> None:
    assert_type(await send(Mail("a")), str)
    assert_type(pack({"number": 1}, ctx), int)
    assert_type(send.submit(Mail("a"), priority=1, delay=3.5), Submitted)
    assert_type(await pack.submit_async({"number": 3}, dedupe_key="k"), Submitted)
    send.submit({"to": "a"})  # type: ignore[arg-type]
    pack.submit({"nummer": 1})  # type: ignore[typeddict-item]
    pack.submit({"number": "1"})  # type: ignore[typeddict-item]
    send.submit(Mail("a"), prority=1)  # type: ignore[call-arg]
    pack({"number": 1})  # type: ignore[call-arg]


async def never_called_either(
    ctx: Context, connection: Connection[tuple[int]], cursor: Cursor[tuple[int]], other: AsyncConnection[tuple[int]]
) -> None:
    assert_type(ctx.complete_in(connection), Cursor[tuple[int]])
    assert_type(ctx.complete_in(cursor, {"x": 1}), Cursor[tuple[int]])
    completion: Awaitable[object] = ctx.complete_in(other)
    await completion
    ctx.complete_in("no connection")  # type: ignore[arg-type]
