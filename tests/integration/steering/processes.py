"""Nodes in processes of their own, which can be stopped and killed, and what their logs say."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

import orjson

from tests.integration.steering.admin import admin_at, counts, settled
from tests.support.commands import RunningCommand, running
from tests.support.stopping import stop_process
from tests.support.zookeeper import free_ports

TTL_S = 6.0


class Trio:
    """Three nodes, node-a to node-c, by name."""

    def __init__(self, nodes: dict[str, RunningCommand], addresses: dict[str, str]) -> None:
        self.nodes = nodes
        self.addresses = addresses

    def kill(self, name: str) -> None:
        """As `kill -9`."""
        self.nodes[name].kill()

    def freeze(self, name: str) -> None:
        """Stop a node in its tracks; it is let go at the end."""
        stop_process(self.nodes[name].process.pid)

    def thaw(self, name: str) -> None:
        """Let a frozen node go on."""
        self.nodes[name].process.send_signal(signal.SIGCONT)

    def gaps_s(self, since_s: float) -> dict[int, float]:
        """For each shard that changed hands since an instant (seconds since 1970): how long it had no owner by the
        nodes' own logs, in seconds; the longest of each."""
        lost: dict[int, float] = {}
        gaps: dict[int, float] = {}
        for at_s, event, shard in sorted(self._changes()):
            if at_s < since_s:
                continue
            if event == "shard lost":
                lost[shard] = at_s
            elif shard in lost:
                gaps[shard] = max(gaps.get(shard, 0.0), at_s - lost.pop(shard))
        assert not lost, f"never acquired again: {sorted(lost)}"
        return gaps

    def _changes(self) -> list[tuple[float, str, int]]:
        return [
            (datetime.fromisoformat(line["timestamp"]).timestamp(), line["event"], line["shard"])
            for node in self.nodes.values()
            for text in node.err.splitlines()
            if text.startswith("{")
            for line in [orjson.loads(text)]
            if line["event"] in ("shard lost", "shard acquired")
        ]


@asynccontextmanager
async def running_trio(
    database: str, leases: dict[str, str], folder: Path, *, ttl_s: float = TTL_S
) -> AsyncIterator[Trio]:
    """Three nodes that share the shards, under sessions of `ttl_s` seconds; node-a leads."""
    names = ("node-a", "node-b", "node-c")
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    with ExitStack() as stack:
        nodes: dict[str, RunningCommand] = {}
        for name, address in addresses.items():
            flags = {
                **leases, "database": database, "node": name, "listen": address, "session-ttl": f"{ttl_s:g}s",
                "data-dir": str(folder / name), "hot-connections": "4", "api-connections": "2",
                "http-listen": "off", "log-format": "json",
            }  # fmt: skip
            arguments = [part for flag, value in flags.items() for part in (f"--{flag}", value)]
            nodes[name] = stack.enter_context(running("serve", *arguments, folder=folder))
            await asyncio.to_thread(nodes[name].wait_for, "node started")
        trio = Trio(nodes, addresses)
        async with admin_at(addresses["node-b"]) as admin:
            status = await settled(admin, timeout_s=60)
            # The last one may not be known to the node that is asked yet.
            while len(counts(status)) < len(names) or min(counts(status).values()) < status.shard_count // len(names):
                status = await settled(admin, at_least=status.plan_version, timeout_s=60)
                await asyncio.sleep(0.05)
        yield trio
