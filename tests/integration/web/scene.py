"""A cluster with something to look at: three nodes, workers, schedules, jobs that run, wait and fail."""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

from tests.support.clusters import Cluster, running_cluster
from worker_sdk import AsyncClient, NewSchedule, NonRetryable, RetryPolicy, Worker

SCHEDULES = (
    NewSchedule(name="billing/monthly", handler="invoice.charge", payload={"cents": 100}, cron="0 6 1 * *"),
    NewSchedule(
        name="reports/daily",
        handler="report.render",
        payload={"of": "yesterday"},
        cron="30 4 * * 1-5",
        time_zone="Europe/Berlin",
    ),
    NewSchedule(name="digest", handler="email.send", payload={"to": "all@example.com"}, cron="*/15 * * * *"),
    NewSchedule(name="storage/sweep", handler="storage.sweep", cron="@hourly"),
)


def shop_worker(address: str, name: str) -> Worker:
    """A worker of a shop that has its troubles."""
    worker = Worker(address, name=name)

    @worker.handler("email.send", max_concurrency=20)
    async def send(message: dict[str, str]) -> dict[str, str]:
        await asyncio.sleep(random.uniform(0.01, 0.2))
        return {"message_id": f"<{message['to']}>"}

    async def charge(invoice: dict[str, object]) -> None:
        cents = invoice["cents"]
        assert isinstance(cents, int)
        if cents > 98_000:
            raise NonRetryable("the card was declined: insufficient_funds")
        if cents > 93_000 and random.random() < 0.9:
            raise ConnectionError("payment gateway: 502 Bad Gateway")

    # Pictures show a path as it is in production, not that of this checkout.
    charge.__code__ = charge.__code__.replace(co_filename="/app/billing.py")
    retry = RetryPolicy(max_attempts=3, initial_delay=0.2)
    worker.handler("invoice.charge", max_concurrency=4, retry=retry)(charge)

    @worker.handler("report.render", max_concurrency=2)
    async def render(report: dict[str, str]) -> None:
        await asyncio.sleep(30)

    return worker


@contextlib.asynccontextmanager
async def shop(database: str, folder: Path) -> AsyncIterator[Cluster]:
    """Start everything; jobs go on being submitted until the end."""
    async with running_cluster(database, folder, http_listen="127.0.0.1:0", worker_lease="15s") as cluster:
        address = cluster.nodes[0].address
        workers = [shop_worker(address, f"shop-{number}") for number in (1, 2)]
        try:
            for worker in workers:
                await asyncio.to_thread(worker.start)
            async with AsyncClient(address) as client:
                for schedule in SCHEDULES:
                    await client.create_schedule(schedule)
                await client.pause_schedule("storage/sweep", note="until the bucket is moved")
                business = asyncio.create_task(_business(client))
                try:
                    yield cluster
                finally:
                    business.cancel()
                    await asyncio.gather(business, return_exceptions=True)
        finally:
            for worker in workers:
                await asyncio.to_thread(worker.stop)


async def _business(client: AsyncClient) -> None:
    await client.submit("storage.sweep", {"bucket": "eu-1"}, labels={"team": "storage"})
    await client.submit("email.send", {"to": "late@example.com"}, delay=timedelta(hours=3), name="reminder")
    order = 4000
    while True:
        order += 1
        to = f"user{order}@example.com"
        for _ in range(round(6 + 4 * math.sin(order / 40) + random.uniform(-2, 2))):
            await client.submit("email.send", {"to": to}, labels={"team": "crm"})
        invoice = {"order": order, "cents": random.randint(1_000, 100_000), "currency": "EUR"}
        await client.submit("invoice.charge", invoice, name=f"order {order}", labels={"team": "billing"})
        if order % 60 == 1:
            await client.submit("report.render", {"of": f"week {order // 60}"}, labels={"team": "finance"})
        await asyncio.sleep(0.25)
