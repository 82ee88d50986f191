"""A way to the database that breaks at a chosen moment."""

import asyncio
from contextlib import suppress
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class CuttingProxy:
    """Passes bytes between clients and PostgreSQL, and cuts connections on demand.

    After `cut(text, deliver)` the next `times` connections that send `text` are cut: before the server sees it, or, if
    `deliver`, after the server has answered it and before the client sees the answer.
    """

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        self._host, self._port = str(parts["host"]), int(str(parts["port"]))
        self._dsn = dsn
        self._text: bytes | None = None
        self._deliver = False
        self._times = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def dsn(self) -> str:
        """The connection string that leads through the proxy."""
        return make_conninfo(self._dsn, host="127.0.0.1", port=self._server.sockets[0].getsockname()[1])

    def cut(self, text: bytes, *, deliver: bool, times: int = 1) -> None:
        """Cut the next `times` connections that send `text`."""
        self._text, self._deliver, self._times = text, deliver, times

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        cutting = asyncio.Event()

        async def forth() -> None:
            while data := await reader.read(65536):
                if self._times and self._text is not None and self._text in data:
                    self._times -= 1
                    self.cuts += 1
                    if not self._deliver:
                        return
                    cutting.set()
                to_server.write(data)

        async def back() -> None:
            while data := await from_server.read(65536):
                if cutting.is_set():
                    return
                writer.write(data)

        ways = [asyncio.create_task(forth()), asyncio.create_task(back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (to_server, writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()
