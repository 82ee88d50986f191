"""TLS in front of a PostgreSQL whose programs were built without it: PostgreSQL's own handshake, then its bytes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
_CHUNK = 1 << 16


class TlsPostgres:
    """Its address, and how many connections have spoken TLS; the others were refused."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.port = 0
        self.encrypted = 0
        self._target = port
        self._context = context
        self._tasks: list[asyncio.Task[None]] = []

    def dsn(self, dsn: str, ca: Path) -> str:
        """Return the URI of a database for clients that verify who answers."""
        parts = urlsplit(dsn)
        account = parts.netloc.rpartition("@")[0]
        query = f"sslmode=verify-full&sslrootcert={quote(str(ca))}"
        return urlunsplit(parts._replace(netloc=f"{account}@127.0.0.1:{self.port}", query=query))

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        # Clients that refuse the certificate, or are ended with their test, break off anywhere.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)
        await _closed(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(len(_SSL_REQUEST)) != _SSL_REQUEST:
            return
        writer.write(b"S")
        await writer.drain()
        await writer.start_tls(self._context)
        self.encrypted += 1
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            await _closed(inner_writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def tls_postgres(port: int, cert: Path, key: Path) -> AsyncIterator[TlsPostgres]:
    """TLS in front of the server at `port`, as long as the block runs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    front = TlsPostgres(port, context)
    server = await asyncio.start_server(front.serve, "127.0.0.1", 0)
    front.port = server.sockets[0].getsockname()[1]
    try:
        yield front
    finally:
        server.close()
        await front.close()
