"""The nemesis: carries out a plan of faults on a cluster."""

import asyncio
from collections.abc import Sequence
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.nemeses.base import REGISTRY, Blow

_TRIES: Final = 20
_AGAIN_S: Final = 1.0


class Nemesis:
    """Carries out a plan. Blows may overlap; each heals by itself what it has broken."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def run(self, blows: Sequence[Blow]) -> None:
        """Strike at the planned times, counted from now; return when everything is healed."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for blow in blows:
                await asyncio.sleep(max(0.0, began + blow.at_s - asyncio.get_running_loop().time()))
                group.create_task(self.strike(blow))

    async def strike(self, blow: Blow) -> None:
        """Strike once, and heal after the blow's time. What cannot strike while its victims are away tries again."""
        for _ in range(_TRIES):
            if await self._struck(blow):
                return
            await asyncio.sleep(_AGAIN_S)

    async def _struck(self, blow: Blow) -> bool:
        async with REGISTRY[blow.fault].strike(self._cluster, blow) as victims:
            if victims:
                self._cluster.journal.write("strike", fault=blow.fault, process=", ".join(victims))
                await asyncio.sleep(blow.hold_s)
            return bool(victims)
