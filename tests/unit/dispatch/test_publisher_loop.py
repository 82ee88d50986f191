"""The publisher's loop outlives whatever goes wrong in a round of it."""

import asyncio

import pytest

from server.dispatch.kafka_publisher import KafkaPublisher
from tests.support.waiting import eventually


async def test_it_goes_on_when_it_cannot_even_part_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = KafkaPublisher(
        servers="127.0.0.1:1", properties_file="", partitions=1, undelivered=lambda refs: None, wake=lambda: None
    )
    rounds = 0

    async def find_broker() -> None:
        nonlocal rounds
        rounds += 1
        raise RuntimeError("no broker")

    async def part() -> None:
        raise RuntimeError("no end either")

    monkeypatch.setattr(publisher, "_find_broker", find_broker)
    monkeypatch.setattr(publisher, "_part", part)
    running = asyncio.create_task(publisher.run())
    await eventually(lambda: rounds >= 2 or running.done(), what="a second round")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert rounds >= 2
