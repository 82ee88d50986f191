"""What a real node exposes, after it has done a bit of everything."""

import asyncio
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from tests.support.kafka import KafkaBroker, publish
from tests.support.nodes import running_node
from tests.support.waiting import eventually
from worker_sdk import AsyncClient, Worker

PREFIX = "shardwheel_"


@dataclass(frozen=True)
class Family:
    """A metric: its type, and the labels of its series, those that make a histogram left out."""

    kind: str
    labels: frozenset[str]
    help: str


Families: TypeAlias = Mapping[str, Family]
"""By name, that of a counter with its suffix."""


async def families_of_a_node(database: str, folder: Path) -> Families:
    """Start a node, have it run a job and keep another waiting, and return what it exposes then."""
    with KafkaBroker() as broker:
        return await _families(database, folder, broker)


async def _families(database: str, folder: Path, broker: KafkaBroker) -> Families:
    async with running_node(database, folder, http_listen="127.0.0.1:0", kafka=broker.address) as node:
        published, _ = await publish(node)
        worker = Worker(node.address, name="w")

        @worker.handler("good")
        async def good(payload: None) -> None:
            return

        await asyncio.to_thread(worker.start)
        try:
            async with AsyncClient(node.address) as client:
                await client.submit("nobody.runs.this")
                await client.submit(published)
                await client.wait((await client.submit("good")).job_id, timeout=30)

            found: dict[str, Family] = {}

            async def told() -> bool:
                found.clear()
                found.update(parsed(await asyncio.to_thread(page, node.http.address)))
                return all(found[f"{PREFIX}{name}"].labels for name in ("jobs_due", "jobs_published"))

            await eventually(told, timeout_s=30, what="the load of the cluster")
        finally:
            await asyncio.to_thread(worker.stop)
    return found


def page(address: str) -> str:
    """Return what a scrape gets."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def parsed(text: str) -> dict[str, Family]:
    """Return the metrics of ours in a page."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith(PREFIX):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
            found[name] = Family(family.type, labels, family.documentation)
    return found
