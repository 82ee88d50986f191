"""A load balancer that has no patience with idle streams, and no notion of an HTTP/2 PING being a sign of life."""

import asyncio
import time
from typing import Final, Self

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER: Final = 9
_DATA, _PING = 0, 6


class IdleProxy:
    """Passes HTTP/2 frames on, but no PING, and cuts a connection that has carried no DATA frame for `patience_s`."""

    def __init__(self, address: str, *, patience_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._patience_s = patience_s
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.cut = 0
        self.pings = 0
        """PING frames that were not passed on."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        writers = [writer]
        try:
            from_node, to_node = await asyncio.open_connection(*self._target)
            writers.append(to_node)
            to_node.write(await reader.readexactly(len(_PREFACE)))
            await _Connection(self, self._patience_s).carry((reader, to_node), (from_node, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in writers:
                one.close()


class _Connection:
    def __init__(self, proxy: IdleProxy, patience_s: float) -> None:
        self._proxy = proxy
        self._patience_s = patience_s
        self._data_at = time.monotonic()

    async def carry(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Return when the connection is over, on either side or by our doing."""
        tasks = [asyncio.create_task(self._pass(*way)) for way in ways]
        tasks.append(asyncio.create_task(self._lose_patience()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header = await reader.readexactly(_HEADER)
            body = await reader.readexactly(int.from_bytes(header[:3], "big"))
            if header[3] == _PING:
                self._proxy.pings += 1
                continue
            if header[3] == _DATA:
                self._data_at = time.monotonic()
            writer.write(header + body)
            await writer.drain()

    async def _lose_patience(self) -> None:
        while True:
            left = self._data_at + self._patience_s - time.monotonic()
            if left <= 0:
                self._proxy.cut += 1
                return
            await asyncio.sleep(left)
