"""A way between two processes that can be closed and opened again."""

import asyncio
import socket
import struct
from typing import Final, Self

_RESET: Final = struct.pack("ii", 1, 0)


class TcpProxy:
    """Passes bytes on. While it is closed, connections are reset and new ones are refused."""

    def __init__(self) -> None:
        self.target = ""
        """HOST:PORT; to be set before the first connection."""
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    @property
    def address(self) -> str:
        """Where clients connect; stays the same."""
        return f"127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Reset every connection and take no new ones."""
        if self._server is not None:
            self._server.close()
        for task, writers in list(self._connections.items()):
            for writer in writers:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = [writer]
        try:
            host, _, port = self.target.rpartition(":")
            from_target, to_target = await asyncio.open_connection(host, int(port))
            self._connections[task].append(to_target)
            ways = [_pass(reader, to_target), _pass(from_target, writer)]
            await asyncio.wait([asyncio.create_task(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for one in self._connections.pop(task):
                one.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
