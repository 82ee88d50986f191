"""The relay: what is held waits, what is cut is reset, what is slow comes later; each for the chosen pair alone."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.journal import Journal, read_lines
from tests.cluster.network import CLIENT, Network
from tests.support.zookeeper import free_ports

PAIR = (CLIENT, "echo")
SOON_S = 5.0
NEVER_S = 0.3


class Place:
    """A server that sends back what it gets, behind a network."""

    def __init__(self, network: Network, port: int, journal: Journal) -> None:
        self.network, self.port, self.journal = network, port, journal

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    journal = Journal(tmp_path / "journal")
    network = Network(tmp_path, journal)
    [port] = free_ports(1)
    network.start()
    try:
        await network.listen("echo", port, server.sockets[0].getsockname()[1])
        yield Place(network, port, journal)
    finally:
        network.close()
        server.close()


async def said(reader: asyncio.StreamReader, expected: bytes, timeout_s: float = SOON_S) -> None:
    assert await asyncio.wait_for(reader.readexactly(len(expected)), timeout_s) == expected


async def silent(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), NEVER_S)


async def test_bytes_come_through_unchanged_and_an_end_is_passed_on(place: Place) -> None:
    reader, writer = await place.connect()
    data = os.urandom(3 << 20)
    writer.write(data)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(-1), SOON_S) == data
    writer.close()
    for _ in range(100):
        if not await place.network.counts():
            break
        await asyncio.sleep(0.05)
    assert await place.network.counts() == {}


@pytest.mark.parametrize(("forth", "back"), [(True, True), (True, False), (False, True)])
async def test_what_is_held_arrives_when_the_way_is_open_again(place: Place, forth: bool, back: bool) -> None:
    reader, writer = await place.connect()
    writer.write(b"before")
    await said(reader, b"before")
    async with place.network.held([PAIR], forth=forth, back=back):
        writer.write(b"meanwhile")
        await silent(reader)
        late_reader, late_writer = await place.connect()
        late_writer.write(b"new")
        await silent(late_reader)
    await said(reader, b"meanwhile")
    await said(late_reader, b"new")
    events = [(line["event"], line["source"], line["target"]) for line in read_lines(place.journal.path)]
    assert events == [("severed", *PAIR), ("joined", *PAIR)]
    writer.close()
    late_writer.close()


async def test_an_end_behind_a_held_way_is_not_heard_of(place: Place) -> None:
    reader, writer = await place.connect()
    writer.write(b"x")
    await said(reader, b"x")
    async with place.network.held([PAIR]):
        writer.close()
        await asyncio.sleep(NEVER_S)
        assert await place.network.counts() == {"client→echo": 1}
    for _ in range(100):
        if not await place.network.counts():
            return
        await asyncio.sleep(0.05)
    pytest.fail("the connection was not closed")


async def test_a_cut_pair_is_reset(place: Place) -> None:
    reader, writer = await place.connect()
    writer.write(b"x")
    await said(reader, b"x")
    async with place.network.cut([PAIR]):
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), SOON_S)
        late_reader, _ = await place.connect()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(late_reader.read(1), SOON_S)
    reader, writer = await place.connect()
    writer.write(b"again")
    await said(reader, b"again")
    writer.close()


async def test_a_slow_way_keeps_the_order(place: Place) -> None:
    reader, writer = await place.connect()
    writer.write(b"0")
    await said(reader, b"0")
    async with place.network.slow([PAIR], 0.2):
        began = time.monotonic()
        writer.write(b"1")
        await asyncio.sleep(0.01)
        writer.write(b"2")
        await said(reader, b"1")
        assert time.monotonic() - began >= 0.4
        writer.write(b"3")
        await asyncio.sleep(0.05)
    writer.write(b"4")
    await said(reader, b"234")
    writer.close()


async def test_overlapping_faults_add_up(place: Place) -> None:
    reader, writer = await place.connect()
    writer.write(b"0")
    await said(reader, b"0")
    first, second = place.network.held([PAIR], back=False), place.network.held([PAIR], forth=False)
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    writer.write(b"1")
    await silent(reader)
    await second.__aexit__(None, None, None)
    await said(reader, b"1")
    writer.close()


async def test_other_pairs_are_left_alone(place: Place) -> None:
    """A process with a name of its own is another source than this one."""
    program = (
        "import socket, sys; sys.stdin.readline(); s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
        "s.sendall(b'hello'); print(s.recv(5).decode(), flush=True); sys.stdin.read()"
    )
    async with place.network.cut([PAIR]):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(place.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        place.journal.write("started", process="other", pid=process.pid)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 10.0) == b"hello\n"
        assert await place.network.counts() == {"other→echo": 1}
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 10.0) == 0
