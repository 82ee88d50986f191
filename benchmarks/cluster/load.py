"""Work for a cluster while something happens to it."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from server.demo.handlers import HANDLER
from server.domain.sharding import shard_of
from worker_sdk import AsyncClient, NewJob

_numbers = itertools.count()


@dataclass(slots=True)
class Load:
    """Jobs whose submit was answered."""

    jobs: set[int] = field(default_factory=set)


def keys_for(shards: int, wanted: Collection[int]) -> list[str]:
    """A dedupe key for each of the shards that are wanted, never the same ones twice."""
    left = set(wanted)
    keys = []
    while left:
        key = f"bench-{next(_numbers)}"
        shard = shard_of(shards, "default", key)
        if shard in left:
            left.remove(shard)
            keys.append(key)
    return keys


async def submit(client: AsyncClient, keys: list[str], *, runs_s: float = 0.0) -> list[int]:
    """Submit one job for each key, due at once."""
    payload = b"%g" % runs_s if runs_s else b""
    done = await client.submit_many(NewJob(handler=HANDLER, payload=payload, dedupe_key=key) for key in keys)
    return [one.job_id for one in done]


@contextlib.asynccontextmanager
async def steady_load(address: str, *, shards: int, per_s: float = 160.0) -> AsyncIterator[Load]:
    """Submit jobs to all shards in turn until the end of the block."""
    load = Load()
    batch = 16

    async def run(client: AsyncClient) -> None:
        for first in itertools.cycle(range(0, shards, batch)):
            began = asyncio.get_running_loop().time()
            load.jobs.update(await submit(client, keys_for(shards, range(first, min(first + batch, shards)))))
            await asyncio.sleep(max(batch / per_s - (asyncio.get_running_loop().time() - began), 0.0))

    async with AsyncClient(address, timeout=30) as client:
        task = asyncio.create_task(run(client))
        try:
            yield load
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
