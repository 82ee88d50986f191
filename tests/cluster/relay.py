"""A process that all connections of a cluster lead through, and that breaks those of chosen pairs.

`python -m tests.cluster.relay JOURNAL STRANGER` reads orders from its input, one JSON object a line, and answers each
with a line. It listens on one port per target, and finds out by itself which process of the journal a connection comes
from.

A *held* way delivers nothing: what is sent waits, as it does behind a switch that drops packets, and arrives when the
way is open again. New connections are taken, and get no answer. A *cut* pair has its connections reset, and every new
one too.
"""

import asyncio
import socket
import struct
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from tests.cluster.owners import Ends, SocketOwners

_HIGH_WATER: Final = 1 << 20
# A look-up takes some milliseconds, however many are looked up.
_GATHER_S: Final = 0.02
_RESET: Final = struct.pack("ii", 1, 0)
Pair = tuple[str, str]


@dataclass(slots=True)
class Rule:
    """How a pair is treated: `forth` is the way from the one that connects."""

    forth: bool = False
    back: bool = False
    cut: bool = False
    delay_s: float = 0.0


@dataclass(slots=True, eq=False)
class Half(asyncio.Protocol):
    """One socket of a connection: what it receives goes to the other one."""

    relay: "Relay"
    pair: Pair
    back: bool
    other: "Half | None" = None
    transport: asyncio.Transport | None = None
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    """What was received and not yet passed on, with the time from which it may be."""
    ended: bool = False
    """Whether no more will be received."""
    told: bool = False
    """Whether the other end knows that."""
    gone: bool = False
    """Whether the connection on this side is over,"""
    broken: bool = False
    """and by an error."""
    full: bool = False
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.relay.halves.add(self)

    def data_received(self, data: bytes) -> None:
        ready = asyncio.get_running_loop().time() + self.relay.rule(self.pair).delay_s
        # Nothing overtakes what came before it.
        self.waiting.append((max(ready, self.waiting[-1][0]) if self.waiting else ready, data))
        self.flush()

    def eof_received(self) -> bool:
        self.ended = True
        self.flush()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.gone = True
        self.broken = exc is not None
        if self.other is None:
            self.relay.halves.discard(self)
        # The other end hears nothing of it until the way is open.
        self.flush()

    def pause_writing(self) -> None:
        self.full = True
        self._read_on_other_side()

    def resume_writing(self) -> None:
        self.full = False
        self._read_on_other_side()

    @property
    def held(self) -> bool:
        """Whether what this socket receives is kept back."""
        rule = self.relay.rule(self.pair)
        return rule.back if self.back else rule.forth

    def update(self) -> None:
        """Do as the rules say from now on."""
        if self.relay.rule(self.pair).cut:
            self.reset()
            return
        self._read_or_not()
        self.flush()

    def flush(self) -> None:
        """Pass on what has waited."""
        if self.held or self.other is None:
            return
        if self.other.transport is None:
            if self.gone:
                self.relay.halves.discard(self)
            return
        now = asyncio.get_running_loop().time()
        while self.waiting and self.waiting[0][0] <= now:
            self.other.transport.write(self.waiting.popleft()[1])
        if self.waiting:
            if self.timer is None or self.timer.when() <= now:
                self.timer = asyncio.get_running_loop().call_at(self.waiting[0][0], self.flush)
        elif self.gone:
            self.relay.halves.discard(self)
            self.other.transport.abort() if self.broken else self.other.transport.close()
        elif self.ended:
            self._tell_end(self.other)

    def reset(self) -> None:
        """Break the connection as a crash of the other side does."""
        if self.transport is not None:
            end: socket.socket | None = self.transport.get_extra_info("socket")
            if end is not None:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        elif self.gone:
            self.relay.halves.discard(self)

    def _tell_end(self, other: "Half") -> None:
        if self.told or other.transport is None:
            return
        self.told = True
        if not other.told:
            try:
                other.transport.write_eof()
            except OSError:
                # It is gone already, and has not been told of that yet.
                other.transport.abort()
            return
        for half in (self, other):
            if half.transport is not None:
                half.transport.close()

    def _read_on_other_side(self) -> None:
        if self.other is not None:
            self.other._read_or_not()

    def _read_or_not(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        full = self.other is None or self.other.full
        if (self.held or full) == self.transport.is_reading():
            self.transport.pause_reading() if self.transport.is_reading() else self.transport.resume_reading()


class Relay:
    """All listeners, connections and rules."""

    def __init__(self, owners: SocketOwners) -> None:
        self._owners = owners
        self._rules: dict[Pair, Rule] = {}
        self._targets: dict[str, tuple[str, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._changed = asyncio.Event()
        self._unknown: dict[Ends, asyncio.Future[str]] = {}
        self.halves: set[Half] = set()

    def rule(self, pair: Pair) -> Rule:
        """Return how a pair is treated now."""
        return self._rules.get(pair, _OPEN)

    async def obey(self, order: dict[str, object]) -> object:
        """Carry out an order and return the answer to it."""
        match order:
            case {"listen": int(port), "target": str(target), "host": str(host), "port": int(to)}:
                self._targets[target] = (host, to)
                loop = asyncio.get_running_loop()
                server = await loop.create_server(lambda: Arrival(self, target, port), "127.0.0.1", port, backlog=512)
                self._servers.append(server)
            case {"target": str(target), "host": str(host), "port": int(to)}:
                self._targets[target] = (host, to)
            case {"pairs": list(pairs), "rule": dict(rule)}:
                for source, target in pairs:
                    self._rules[source, target] = Rule(**rule)
                self._update({(source, target) for source, target in pairs})
                # Whoever waits for a way to be open again looks.
                self._changed.set()
                self._changed = asyncio.Event()
            case {"count": True}:
                counts: dict[str, int] = {}
                for half in self.halves:
                    if not half.back:
                        name = "→".join(half.pair)
                        counts[name] = counts.get(name, 0) + 1
                return counts
            case _:
                raise ValueError(f"not an order: {order}")
        return True

    def arrived(self, near: asyncio.Transport, target: str, port: int) -> None:
        """Lead a new connection on."""
        task = asyncio.get_running_loop().create_task(self._lead(near, target, port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, near: asyncio.Transport, target: str, port: int) -> None:
        near.pause_reading()
        pair = (await self._source(near.get_extra_info("peername")[1], port), target)
        first = Half(self, pair, back=False)
        first.connection_made(near)
        near.set_protocol(first)
        while (rule := self.rule(pair)).forth or rule.back:
            await self._changed.wait()
            if near.is_closing():
                return
        if rule.cut:
            first.reset()
            return
        second = Half(self, pair, back=True, other=first)
        host, to = self._targets[target]
        try:
            await asyncio.get_running_loop().create_connection(lambda: second, host, to)
        except OSError:
            first.reset()
            return
        first.other = second
        for half in (first, second):
            half.update()
        if near.is_closing() and second.transport is not None:
            second.transport.close()

    async def _source(self, near: int, far: int) -> str:
        """Return who has made a connection. Those that come at about the same time are looked up together."""
        if not self._unknown:
            asyncio.get_running_loop().call_later(_GATHER_S, self._look_up)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unknown[near, far] = future
        return await future

    def _look_up(self) -> None:
        unknown, self._unknown = self._unknown, {}
        for ends, name in self._owners.names_of(unknown).items():
            if not unknown[ends].done():
                unknown[ends].set_result(name)

    def _update(self, pairs: set[Pair]) -> None:
        for half in [half for half in self.halves if half.pair in pairs]:
            half.update()


class Arrival(asyncio.Protocol):
    """A connection that has just been taken."""

    def __init__(self, relay: Relay, target: str, port: int) -> None:
        self._relay, self._target, self._port = relay, target, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._relay.arrived(transport, self._target, self._port)


_OPEN: Final = Rule()


async def serve(journal: Path, stranger: str) -> None:
    """Obey orders until the input ends."""
    relay = Relay(SocketOwners(journal, stranger))
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        answer = await relay.obey(orjson.loads(line))
        sys.stdout.write(orjson.dumps(answer).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
