"""Nodes for tests: managers with a host that records, a fence like PostgreSQL's, and events to wait for."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from shard_manager.coordinator import Coordinator, Lease, Member
from shard_manager.events import ManagerEvent, ShardAcquired, ShardLost
from shard_manager.host import ShardHost
from shard_manager.manager import ShardManager
from shard_manager.memory import MemoryCluster, MemoryCoordinator
from shard_manager.timings import ManagerTimings

DEADLINE_S = 10.0


def ms(milliseconds: float) -> timedelta:
    return timedelta(milliseconds=milliseconds)


TIMINGS = ManagerTimings(
    session_ttl=ms(5000),
    heartbeat=ms(100),
    poll=ms(20),
    handoff_poll=ms(10),
    reread=ms(500),
    backoff_initial=ms(5),
    backoff_max=ms(50),
    fence_call=ms(2000),
    start_call=ms(500),
    stop_call=ms(300),
    settle=ms(30),
    loss_guard=ms(200),
    drain_handover=ms(2000),
    leave_limit=ms(300),
    drain_limit=ms(5000),
)


def now() -> datetime:
    """The cluster's time: that of the event loop, which may be virtual."""
    return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)


class Fences:
    """The shard table that all nodes share: accepts a lease only if it is newer, and raises the epoch then.

    `serving` is who serves a shard by its own account; `overlaps` collects shards served by two at once.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.leases: dict[int, Lease] = {}
        self.owners: dict[int, str] = {}
        self.serving: dict[int, set[str]] = {}
        self.overlaps: list[tuple[int, set[str]]] = []

    def fence_in(self, node: str, leases: Collection[Lease]) -> dict[int, int]:
        for lease in leases:
            known = self.leases.get(lease.shard)
            if known is None or lease > known:
                self.leases[lease.shard] = lease
                self.epochs[lease.shard] = self.epochs.get(lease.shard, 0) + 1
                self.owners[lease.shard] = node
        return {
            lease.shard: self.epochs[lease.shard]
            for lease in leases
            if self.leases[lease.shard] == lease and self.owners[lease.shard] == node
        }


class RecordingHost:
    """Serves shards by writing down that it does. Calls can be made to fail, to hang, and to take `delay_s()`, but for
    immediate stops, which take no time."""

    def __init__(self, fences: Fences, node: str) -> None:
        self.fences = fences
        self.node = node
        self.running: dict[int, int] = {}
        self.calls: list[tuple[str, int, object]] = []
        self.wrong: list[str] = []
        self.fence_calls = 0
        self.fence_errors: list[Exception] = []
        self.refuse_to_start: set[int] = set()
        self.hang_on_stop: set[tuple[int, bool]] = set()
        self.given_back: list[int] = []
        self.delay_s: Callable[[], float] = lambda: 0.0
        self._busy: set[int] = set()

    async def fence_in(self, leases: Sequence[Lease]) -> Mapping[int, int]:
        self.fence_calls += 1
        await asyncio.sleep(self.delay_s())
        if self.fence_errors:
            raise self.fence_errors.pop()
        return self.fences.fence_in(self.node, leases)

    async def start(self, shard: int, epoch: int) -> None:
        self.calls.append(("start", shard, epoch))
        with self._alone(shard):
            await asyncio.sleep(self.delay_s())
        if shard in self.refuse_to_start:
            raise RuntimeError(f"shard {shard} does not start")
        if shard in self.running:
            self.wrong.append(f"{self.node}: shard {shard} started twice")
        self.running[shard] = epoch
        others = self.fences.serving.setdefault(shard, set())
        if others:
            self.fences.overlaps.append((shard, others | {self.node}))
        others.add(self.node)

    async def stop(self, shard: int, *, graceful: bool) -> None:
        self.calls.append(("stop", shard, graceful))
        with self._alone(shard):
            if (shard, graceful) in self.hang_on_stop:
                await asyncio.Event().wait()
            await asyncio.sleep(self.delay_s() if graceful else 0)
        self.running.pop(shard, None)
        self.fences.serving.get(shard, set()).discard(self.node)

    async def released(self, shards: Sequence[int]) -> None:
        self.given_back.extend(shards)

    @contextmanager
    def _alone(self, shard: int) -> Iterator[None]:
        if shard in self._busy:
            self.wrong.append(f"{self.node}: calls for shard {shard} overlap")
        self._busy.add(shard)
        try:
            yield
        finally:
            self._busy.discard(shard)

    def stops(self, shard: int) -> list[object]:
        """Of the stops of a shard, whether they were graceful, in order."""
        return [detail for call, at, detail in self.calls if call == "stop" and at == shard]


class EventLog:
    """The observer of one node: all its events, and a way to wait for one."""

    def __init__(self) -> None:
        self.all: list[ManagerEvent] = []
        self.raises = False
        self._news = asyncio.Event()

    def __call__(self, event: ManagerEvent) -> None:
        self.all.append(event)
        self._news.set()
        if self.raises:
            raise RuntimeError("observer")

    def of(self, *kinds: type[ManagerEvent]) -> list[ManagerEvent]:
        return [event for event in self.all if isinstance(event, kinds)]

    async def until(self, done: Callable[[], object], what: str = "the condition") -> None:
        """Wait until `done()` is true, looking after every event and every few milliseconds."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not done():
                    self._news.clear()
                    try:
                        async with asyncio.timeout(0.005):
                            await self._news.wait()
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise AssertionError(f"{what} was not reached; events: {self.all[-20:]}") from None


class Node:
    """One node under test. Leaving the block kills it if it still runs: no release, no goodbye."""

    def __init__(
        self,
        coordinator: Coordinator,
        host: ShardHost,
        name: str,
        *,
        incarnation: int = 1,
        shards: int = 16,
        replaces: Collection[int] = (),
        timings: ManagerTimings = TIMINGS,
        max_moves: int | None = None,
        draw: random.Random | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.name = name
        self.shards = shards
        self.events = EventLog()
        self.manager = ShardManager(
            coordinator,
            host,
            member=Member(node=name, incarnation=incarnation, address="127.0.0.1:7400"),
            shards=shards,
            replaces=replaces,
            timings=timings,
            observer=self.events,
            max_moves=max_moves,
            draw=draw,
            clock=now,
        )
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    def start(self) -> None:
        self.task = asyncio.create_task(self.manager.run(), name=f"node-{self.name}")

    async def kill(self) -> None:
        """End the node abruptly; its session stays until it expires. An error of `run` comes up here."""
        if self.task is None:
            return
        self.task.cancel()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
        self.task = None

    @property
    def owned(self) -> set[int]:
        return set(self.manager.owned)

    async def owns(self, count: int) -> None:
        """Wait until the node owns, and its host serves, exactly so many shards."""
        await self.events.until(
            lambda: len(self.owned) == count and self.served == self.owned, f"{self.name} owning {count} shards"
        )

    @property
    def served(self) -> set[int]:
        """Shards that were reported acquired and not lost since."""
        served: set[int] = set()
        for event in self.events.all:
            if isinstance(event, ShardAcquired):
                served.add(event.shard)
            elif isinstance(event, ShardLost):
                served.discard(event.shard)
        return served


async def bounded(what: Awaitable[None], seconds: float = DEADLINE_S) -> None:
    """Await, with a deadline."""
    async with asyncio.timeout(seconds):
        await what


class Site:
    """A cluster in memory."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(lambda: asyncio.get_running_loop().time())
        self.fences = Fences()
        self.hosts: dict[str, RecordingHost] = {}

    def node(
        self,
        name: str,
        *,
        coordinator: Coordinator | None = None,
        incarnation: int = 1,
        shards: int = 16,
        replaces: Collection[int] = (),
        timings: ManagerTimings = TIMINGS,
        max_moves: int | None = None,
        draw: random.Random | None = None,
    ) -> Node:
        """A node that is not running yet; its host is `hosts[name]`."""
        self.hosts[name] = RecordingHost(self.fences, name)
        return Node(
            coordinator or MemoryCoordinator(self.cluster),
            self.hosts[name],
            name,
            incarnation=incarnation,
            shards=shards,
            replaces=replaces,
            timings=timings,
            max_moves=max_moves,
            draw=draw,
        )

    def check(self) -> None:
        """No host saw calls out of order."""
        assert [wrong for host in self.hosts.values() for wrong in host.wrong] == []
