"""A worker to try things with: `python -m worker_sdk server.demo.hello:worker`."""

from typing import TypedDict

from worker_sdk.worker import Worker

worker = Worker()


class Who(TypedDict):
    """Whom to greet."""

    name: str


@worker.handler("hello")
async def hello(who: Who) -> str:
    """Greet."""
    return f"Hello, {who['name']}!"
