"""The network of a cluster: who reaches whom, and how that is broken and mended.

All connections lead through one relay process. A *pair* is (who connects, to whom); the harness's own clients are
called `CLIENT`. Faults may overlap: a pair is whole again when the last of them is over.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Final

import orjson

from server.embedded.port import LOOPBACK
from tests.cluster.journal import Journal

CLIENT: Final = "client"
Pair = tuple[str, str]
_ANSWER_S: Final = 20.0


class Network:
    """The relay process and what it was told. Used in one event loop, from `start` to `close`."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        self._faults: list[tuple[frozenset[Pair], dict[str, object]]] = []

    def start(self) -> None:
        """Start the relay; it ends with this process, whose end of the pipe it watches."""
        with (self._folder / "relay.out").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.relay", str(self._journal.path), CLIENT],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        """End the relay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    async def listen(self, target: str, port: int, to: int) -> None:
        """Lead connections to `port` on to a target on port `to`."""
        await self._tell({"listen": port, "target": target, "host": LOOPBACK, "port": to})

    async def lead(self, target: str, to: int) -> None:
        """Lead new connections to a target to another port from now on."""
        await self._tell({"target": target, "host": LOOPBACK, "port": to})

    async def counts(self) -> dict[str, int]:
        """Return how many connections there are per pair, written as `source→target`."""
        counts = await self._tell({"count": True})
        assert isinstance(counts, dict)
        return counts

    def held(
        self, pairs: Sequence[Pair], *, forth: bool = True, back: bool = True
    ) -> "contextlib.AbstractAsyncContextManager[None]":
        """Deliver nothing between these pairs: `forth`, from those that connect, and `back`, to them."""
        return self._fault(pairs, {"forth": forth, "back": back})

    def cut(self, pairs: Sequence[Pair]) -> "contextlib.AbstractAsyncContextManager[None]":
        """Reset the connections of these pairs, and each new one."""
        return self._fault(pairs, {"cut": True})

    def slow(self, pairs: Sequence[Pair], delay_s: float) -> "contextlib.AbstractAsyncContextManager[None]":
        """Deliver everything between these pairs so much later."""
        return self._fault(pairs, {"delay_s": delay_s})

    @contextlib.asynccontextmanager
    async def _fault(self, pairs: Iterable[Pair], rule: dict[str, object]) -> AsyncIterator[None]:
        fault = (frozenset(pairs), rule)
        self._faults.append(fault)
        breaks = "delay_s" not in rule
        try:
            if breaks:
                self._note("severed", fault[0])
            await self._apply(fault[0])
            yield
        finally:
            self._faults.remove(fault)
            await self._apply(fault[0])
            if breaks:
                self._note("joined", fault[0])

    async def _apply(self, pairs: Iterable[Pair]) -> None:
        for pair in sorted(pairs):
            rule: dict[str, object] = {}
            for among, one in self._faults:
                if pair in among:
                    rule |= {name: value for name, value in one.items() if value}
            await self._tell({"pairs": [pair], "rule": rule})

    def _note(self, event: str, pairs: Iterable[Pair]) -> None:
        for source, target in sorted(pairs):
            self._journal.write(event, source=source, target=target)

    async def _tell(self, order: dict[str, object]) -> object:
        async with self._turn:
            return await asyncio.wait_for(asyncio.to_thread(self._ask, orjson.dumps(order) + b"\n"), _ANSWER_S)

    def _ask(self, line: bytes) -> object:
        process = self._process
        assert process is not None, "the network was not started"
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"the relay has ended: {(self._folder / 'relay.out').read_text()[-2000:]}"
        return orjson.loads(answer)
