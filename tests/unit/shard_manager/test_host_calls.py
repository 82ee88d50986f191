"""Calls to the shard host: one at a time for each shard, each with an end, whatever the host does."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from shard_manager.coordinator import Lease
from shard_manager.host_calls import HostCalls
from tests.support.virtual_time import virtual_time
from tests.unit.shard_manager.cluster import TIMINGS, ms

SHARD = 3
LEASE = Lease(shard=SHARD, generation=1, token=1)
EVEN = replace(TIMINGS, start_call=ms(500), stop_call=ms(500))


@dataclass
class ScriptedHost:
    """A host whose calls take as long as they are told to. `log` has what began and how it ended, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    deaf_s: float = 0.0
    cancels_itself: bool = False
    log: list[str] = field(default_factory=list)
    under_way: int = 0
    overlapped: bool = False

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        await self._call("fence")
        return {lease.shard: 1 for lease in leases}

    async def start(self, shard: int, epoch: int) -> None:
        await self._call("start")

    async def stop(self, shard: int, *, graceful: bool) -> None:
        await self._call("graceful stop" if graceful else "stop")

    async def released(self, shards: Sequence[int]) -> None:
        await self._call("released")

    async def _call(self, name: str) -> None:
        self.log.append(name)
        self.overlapped |= self.under_way > 0
        self.under_way += 1
        try:
            if self.cancels_itself:
                raise asyncio.CancelledError
            await asyncio.sleep(self.seconds.get(name, 0.0))
        except asyncio.CancelledError:
            await asyncio.sleep(self.deaf_s)
            self.log.append(f"{name} cut short")
            raise
        else:
            self.log.append(f"{name} done")
        finally:
            self.under_way -= 1


@dataclass
class Told:
    """What was told of the outcomes, in order."""

    log: list[str] = field(default_factory=list)

    def started(self, shard: int, epoch: int) -> None:
        self.log.append(f"started {shard} at {epoch}")

    def start_failed(self, shard: int) -> None:
        self.log.append(f"start of {shard} failed")

    def stopped(self, shard: int) -> None:
        self.log.append(f"stopped {shard}")


@virtual_time
async def test_an_immediate_stop_also_ends_the_start_that_a_graceful_one_waits_for() -> None:
    """A start that lived on would serve a shard that nobody stops any more."""
    host, told = ScriptedHost({"start": 0.4}), Told()
    calls = HostCalls(host, EVEN, told)
    calls.start(SHARD, 1)
    await asyncio.sleep(0.1)
    calls.stop(SHARD, graceful=True)
    await asyncio.sleep(0.1)
    calls.stop(SHARD, graceful=False)
    await calls.settled()
    assert host.log == ["start", "start cut short", "stop", "stop done"]
    assert told.log == ["stopped 3"]
    assert not host.overlapped
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_start_graceful_and_immediate_stop_in_one_breath_leave_nothing_running() -> None:
    host, told = ScriptedHost({"start": 0.1}), Told()
    calls = HostCalls(host, EVEN, told)
    calls.start(SHARD, 1)
    calls.stop(SHARD, graceful=True)
    calls.stop(SHARD, graceful=False)
    await calls.settled()
    assert host.log[-2:] == ["stop", "stop done"]
    assert "start done" not in host.log
    assert told.log == ["stopped 3"]
    assert not host.overlapped


@virtual_time
async def test_a_graceful_stop_waits_for_the_start_but_not_longer_than_a_stop_may_take() -> None:
    host, told = ScriptedHost({"start": 0.4}), Told()
    calls = HostCalls(host, EVEN, told)
    calls.start(SHARD, 7)
    calls.stop(SHARD, graceful=True)
    await calls.settled()
    assert host.log == ["start", "start done", "graceful stop", "graceful stop done"]
    assert told.log == ["started 3 at 7", "stopped 3"]

    host, told = ScriptedHost({"start": 0.4}), Told()
    calls = HostCalls(host, replace(EVEN, stop_call=ms(100)), told)
    calls.start(SHARD, 7)
    calls.stop(SHARD, graceful=True)
    await calls.settled()
    assert host.log == ["start", "start cut short", "graceful stop", "graceful stop done"]
    assert told.log == ["stopped 3"]
    assert not host.overlapped


@virtual_time
async def test_an_immediate_stop_waits_until_what_it_cuts_short_has_ended_but_not_for_ever() -> None:
    host, told = ScriptedHost({"graceful stop": 60.0}, deaf_s=0.3), Told()
    calls = HostCalls(host, EVEN, told)
    calls.stop(SHARD, graceful=True)
    await asyncio.sleep(0.1)
    calls.stop(SHARD, graceful=False)
    await calls.settled()
    assert host.log == ["graceful stop", "graceful stop cut short", "stop", "stop done"]
    assert told.log == ["stopped 3"]
    assert not host.overlapped

    host, told = ScriptedHost({"graceful stop": 60.0}, deaf_s=60.0), Told()
    calls = HostCalls(host, EVEN, told)
    calls.stop(SHARD, graceful=True)
    await asyncio.sleep(0.1)
    calls.stop(SHARD, graceful=False)
    await asyncio.sleep(1.1)
    assert told.log == ["stopped 3"]
    await calls.settled()
    assert told.log == ["stopped 3"]


@virtual_time
async def test_a_call_that_the_host_itself_cancels_has_failed_and_is_told() -> None:
    """Else the shard would be taken to be starting, or stopping, for ever."""
    host, told = ScriptedHost(cancels_itself=True), Told()
    calls = HostCalls(host, EVEN, told)
    calls.start(SHARD, 1)
    await calls.settled()
    assert told.log == ["start of 3 failed"]
    calls.stop(SHARD, graceful=True)
    await calls.settled()
    assert told.log == ["start of 3 failed", "stopped 3"]
    assert host.log == [
        "start", "start cut short", "graceful stop", "graceful stop cut short", "stop", "stop cut short"
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match="cancelled"):
        await calls.fence_in([LEASE])
    await calls.released([SHARD])


@virtual_time
async def test_calls_have_deadlines() -> None:
    host, told = ScriptedHost(dict.fromkeys(["fence", "start", "graceful stop", "stop", "released"], 60.0)), Told()
    calls = HostCalls(host, EVEN, told)
    with pytest.raises(TimeoutError):
        await calls.fence_in([LEASE])
    await calls.released([SHARD])
    calls.start(SHARD, 1)
    await calls.settled()
    calls.stop(SHARD, graceful=True)
    await calls.settled()
    assert told.log == ["start of 3 failed", "stopped 3"]
    assert asyncio.get_running_loop().time() - 1000.0 == pytest.approx(2.0 + 0.5 + 0.5 + 2 * 0.5)


@virtual_time
async def test_cancelling_the_caller_of_fence_in_cancels_it() -> None:
    calls = HostCalls(ScriptedHost({"fence": 60.0}), EVEN, Told())
    task = asyncio.create_task(calls.fence_in([LEASE]))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
